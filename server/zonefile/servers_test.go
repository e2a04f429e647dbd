package zonefile_test

import (
	"context"
	"fmt"
	"log/slog"
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

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/testlog"
)

// knot and nsd are configurations: a directory, an address, a port and the file.
const (
	knot = `
server:
    rundir: "%[1]s"
    listen: [%[2]s@%[3]d]
database:
    storage: "%[1]s"
acl:
  - id: local
    address: 127.0.0.1
    action: transfer
zone:
  - domain: z.test
    file: "%[4]s"
    acl: local
    semantic-checks: off
    zonefile-sync: -1
`
	nsd = `
server:
    ip-address: %[2]s@%[3]d
    username: ""
    chroot: ""
    zonesdir: "%[1]s"
    database: ""
    pidfile: "%[1]s/pid"
    xfrdfile: "%[1]s/xfrd"
    zonelistfile: "%[1]s/list"
    xfrdir: "%[1]s"
    cookie-secret-file: ""
    minimal-responses: no
remote-control:
    control-enable: no
zone:
    name: z.test
    zonefile: "%[4]s"
    provide-xfr: 127.0.0.1 NOKEY
`
)

// authorities are the programs that answers are compared with.
var authorities = []struct {
	program, config string
	args            []string
}{
	{"knotd", knot, []string{"-c"}},
	{"nsd", nsd, []string{"-d", "-c"}},
}

// TestServers compares answers with those of Knot DNS and NSD, where they are installed: rcode, AA, answers,
// and the authority section of denials and referrals.
func TestServers(t *testing.T) {
	// Neither server takes a circle of one alias as a zone, nor $GENERATE in any version.
	text, _, _ := strings.Cut(shapes, "$ORIGIN")
	text = strings.ReplaceAll(text, "self1        CNAME self1\n", "")
	tab := table(t, text)
	for _, s := range authorities {
		t.Run(s.program, func(t *testing.T) {
			program, err := exec.LookPath(s.program)
			if err != nil {
				t.Skip("not installed; sh test/install.sh knotd nsd")
			}
			addr := serve(t, program, s.config, s.args, text)
			for _, name := range shapeNames() {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypeDS, dns.TypeDNAME, dns.TypeSRV} {
					compareServer(t, tab, addr, name, qtype)
				}
			}
		})
	}
}

// serve starts the program for the zone of text.
func serve(t *testing.T, program, config string, args []string, text string) netip.AddrPort {
	t.Helper()
	dir := t.TempDir()
	zone, conf := filepath.Join(dir, "db"), filepath.Join(dir, "conf")
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), peer.Ports(t, 1)[0])
	for path, content := range map[string]string{zone: "$ORIGIN z.test.\n" + text, conf: fmt.Sprintf(config, dir, addr.Addr(), addr.Port(), zone)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := peer.Start(t, peer.Command{Name: filepath.Base(program), Path: program, Args: append(args, conf)})
	p.Must(t, "the server to answer", peer.Answers(addr))
	return addr
}

// shapeNames are names in each shape of the zone, and some that it doesn't have.
func shapeNames() []string {
	var list []string
	for name := range strings.FieldsSeq("www mail no a.www _tcp _x._tcp wild x.wild x.y.wild *.wild host.wild x.host.wild b.wild x.b.wild a.b.wild odd y.odd *.odd z.y.odd x.alias sub deep.sub ns.sub old a.old b.old a.new far a.far one two out gone tosub nodata") {
		list = append(list, name+".z.test.")
	}
	return append(list, "z.test.")
}

// compareServer compares one answer.
func compareServer(t *testing.T, tab *zonefile.Table, addr netip.AddrPort, name string, qtype uint16) {
	t.Helper()
	c := dns.Client{Timeout: 5 * time.Second}
	theirs, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, qtype), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	o, text := ask(t, tab, name, qtype, false)
	text, _, _ = strings.Cut(text, " > ")
	if o == authority.Leads { // what the alias leads to is not the zone's
		text = strings.Replace(text, "NOERROR", "NOERROR aa", 1)
		theirs.Ns, theirs.Extra = nil, nil
	}
	got, want := outline(text), outline(inShort(theirs))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s %s (-%s +zonefile):\n%s", name, dns.Type(qtype), addr, diff)
	}
}

// outline is the text of a reply with its records in order and in lower case, and without what servers may add to a
// positive answer.
func outline(text string) []string {
	parts := strings.Split(strings.ToLower(text), " | ")
	list := []string{parts[0]}
	for i, part := range parts[1:] {
		denies := strings.Contains(part, " soa ")
		refers := !strings.Contains(parts[0], " aa")
		if i == 0 || i == 1 && (denies || refers) && (len(parts[1]) == 0 || denies) {
			rrs := strings.Split(part, "; ")
			slices.Sort(rrs)
			list = append(list, strings.Join(rrs, "; "))
		}
	}
	return list
}

// largeZone is a zone of 10,000 records: hosts, wildcards, empty non-terminals, delegations with the addresses of
// their servers, aliases and DNAME records.
func largeZone() string {
	var b strings.Builder
	b.WriteString("$TTL 300\n@ SOA ns host 7 3600 600 86400 60\n@ NS ns\nns A 192.0.2.1\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "h%d A 10.0.%d.%d\n*.w%d TXT \"%d\"\n", i, i>>8, i&255, i, i)
	}
	for i := range 1500 {
		fmt.Fprintf(&b, "a.b.e%d AAAA 2001:db8::%x\nd%d NS ns.d%d\nns.d%d A 10.1.%d.%d\n", i, i, i, i, i, i>>8, i&255)
	}
	for i := range 749 {
		fmt.Fprintf(&b, "c%d CNAME h%d\nr%d DNAME e%d\n", i, i, i, i)
	}
	return b.String() + "last A 192.0.2.2\n"
}

// largeNames are some of the zone's names, and some that it doesn't have.
func largeNames() (list []string) {
	for i := 0; i < 749; i += 61 {
		for _, shape := range []string{"h%d", "x.h%d", "x.w%d", "x.y.w%d", "w%d", "b.e%d", "e%d", "x.e%d", "a.b.e%d", "d%d", "x.d%d", "ns.d%d", "c%d", "r%d", "a.b.r%d", "x.r%d", "no%d"} {
			list = append(list, fmt.Sprintf(shape, i)+".z.test.")
		}
	}
	return list
}

// TestLargeZone: the answers from a zone of 10,000 records are those of Knot DNS and NSD, and the zone that is transferred from them is the
// one in the file.
func TestLargeZone(t *testing.T) {
	text := largeZone()
	tab := table(t, text)
	if n := tab.Records(); n != 10_002 {
		t.Errorf("%d records", n)
	}
	want := recordList(tab.Zone(zTest))
	for _, s := range authorities {
		t.Run(s.program, func(t *testing.T) {
			program, err := exec.LookPath(s.program)
			if err != nil {
				t.Skip("not installed; sh test/install.sh knotd nsd")
			}
			addr := serve(t, program, s.config, s.args, text)
			transferred := transferFrom(t, addr)
			if got := recordList(transferred.Zone(zTest)); !slices.Equal(got, want) {
				t.Errorf("%d records were transferred, which are not the %d in the file", len(got), len(want))
			}
			for _, name := range largeNames() {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeTXT} {
					compareServer(t, transferred, addr, name, qtype)
				}
			}
		})
	}
}

// transferFrom returns the table of the zone, transferred from the server.
func transferFrom(t *testing.T, addr netip.AddrPort) *zonefile.Table {
	t.Helper()
	cfg := secondaryOf(t)
	cfg.From = []netip.AddrPort{addr}
	var log testlog.Buffer
	tab := zonefile.NewSecondary(cfg, zonefile.NewPrimaries(), zonefile.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { tab.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	poll.Until(t, "the transfer", func() bool { return tab.Zone(zTest) != nil })
	return tab
}

// recordList are the records of a zone in a fixed order.
func recordList(z *zonefile.Zone) (list []string) {
	for rr := range z.All() {
		list = append(list, fmt.Sprintf("%x %d %d %x", rr.Owner, rr.Type, rr.TTL, rr.Data))
	}
	slices.Sort(list)
	return list
}
