package app

// Inside the package: it shares the in-process agent with the tests of reloads.

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// Configurations of secondaries: a directory, their port, and the agent's.
const (
	knotSecondary = `
server:
    rundir: "%[1]s"
    listen: [127.0.0.1@%[2]d]
database:
    storage: "%[1]s"
remote:
  - id: primary
    address: 127.0.0.1@%[3]d
acl:
  - id: all
    address: 127.0.0.1
    action: [notify, transfer]
zone:
  - domain: z.test
    master: primary
    acl: all
    zonefile-sync: -1
`
	nsdSecondary = `
server:
    ip-address: 127.0.0.1@%[2]d
    username: ""
    chroot: ""
    zonesdir: "%[1]s"
    database: ""
    pidfile: "%[1]s/pid"
    xfrdfile: "%[1]s/xfrd"
    zonelistfile: "%[1]s/list"
    xfrdir: "%[1]s"
    cookie-secret-file: ""
    xfrd-reload-timeout: 0
remote-control:
    control-enable: no
zone:
    name: z.test
    zonefile: "%[1]s/db"
    request-xfr: AXFR 127.0.0.1@%[3]d NOKEY
    allow-notify: 127.0.0.1 NOKEY
    provide-xfr: 127.0.0.1 NOKEY
`
)

// secondaryZone is the text of a zone of 10,000 records with wildcards, empty non-terminals, delegations with addresses and
// DNAME.
func secondaryZone(serial int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "$TTL 60\n@ SOA ns1 host %d 3600 600 86400 30\n@ NS ns1\nns1 A 192.0.2.1\n@ MX 10 ns1\n*.wild A 192.0.2.2\na.b.wild TXT deep\n"+
		"sub NS ns.sub\nsub NS ns.else.test.\nns.sub A 192.0.2.3\nns.sub AAAA 2001:db8::3\nsub DS 1 13 2 %064d\nold DNAME new\nalias CNAME www.else.test.\n"+
		"_s._tcp SRV 1 2 53 ns1\nsvc HTTPS 1 ns1 alpn=h2\n", serial, 0)
	for i := range 10_000 {
		fmt.Fprintf(&b, "h%d.e%d A 192.0.2.%d\n", i, i%100, i%250)
	}
	return b.String()
}

// sortedTransfer returns the records that the server transfers, in lower case and sorted; an error while it has none.
func sortedTransfer(server netip.AddrPort) (list []string, err error) {
	t := dns.Transfer{ReadTimeout: 30 * time.Second}
	envelopes, err := t.In(new(dns.Msg).SetAxfr("z.test."), server.String())
	if err != nil {
		return nil, err
	}
	for e := range envelopes {
		if err = e.Error; err == nil {
			for _, rr := range e.RR {
				list = append(list, strings.ToLower(rr.String()))
			}
		}
	}
	slices.Sort(list)
	return list, err
}

// TestTransferToServers: Knot DNS and NSD transfer a zone of 10,000 records from the agent, have the same records then, and get
// the next version because of a NOTIFY: the SOA record lets them ask only after an hour.
func TestTransferToServers(t *testing.T) {
	for _, s := range []struct {
		program, config string
		args            []string
	}{
		{"knotd", knotSecondary, []string{"-c"}},
		{"nsd", nsdSecondary, []string{"-d", "-c"}},
	} {
		t.Run(s.program, func(t *testing.T) {
			program, err := exec.LookPath(s.program)
			if err != nil {
				t.Skip("not installed; sh test/install.sh knotd nsd")
			}
			dir, ports := t.TempDir(), peer.Ports(t, 2)
			secondary, primary := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ports[0]), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ports[1])
			zone, conf := filepath.Join(dir, "primary"), filepath.Join(dir, "conf")
			agenttest.WriteFile(t, zone, secondaryZone(1))
			agenttest.WriteFile(t, conf, fmt.Sprintf(s.config, dir, secondary.Port(), primary.Port()))
			l := lookedAt(t, blockText("z.test", primary.Port(), "bind 127.0.0.1", fmt.Sprintf("file %q {\nreload 100ms\n}", zone), fmt.Sprintf("transfer {\nto %s\n}", secondary)))
			peer.Start(t, peer.Command{Name: s.program, Path: program, Args: append(s.args, conf)})
			serial := func(want int) func() bool {
				return func() bool {
					c := dns.Client{Timeout: time.Second}
					m, _, err := c.Exchange(new(dns.Msg).SetQuestion("z.test.", dns.TypeSOA), secondary.String())
					return err == nil && len(m.Answer) == 1 && m.Answer[0].(*dns.SOA).Serial == uint32(want)
				}
			}
			for version := 1; version <= 2; version++ {
				if version > 1 {
					check.NoError(t, os.WriteFile(zone, []byte(secondaryZone(version)+"new-host A 192.0.2.9\n"), 0o600))
				}
				poll.Until(t, fmt.Sprintf("version %d; the log:\n%s", version, l.log), serial(version))
				ours, err := sortedTransfer(primary)
				check.NoError(t, err)
				theirs, err := sortedTransfer(secondary)
				check.NoError(t, err)
				if d := cmp.Diff(ours, theirs); d != "" || len(ours) < 10_016 {
					t.Errorf("version %d: %d records; (-agent +%s):\n%s", version, len(ours), s.program, d)
				}
			}
		})
	}
}
