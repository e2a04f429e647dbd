package differential

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestTransfer compares what clients get who ask for zones: the records of a stream in any order, one reply, or an error.
func TestTransfer(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	path := filepath.Join(t.TempDir(), "db.zone.test")
	text, _, _ := strings.Cut(zoneText, "$ORIGIN") // the same file is read for several zones
	check.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	s := newPlainSite(t)
	file := "file " + path + " zone.test closed.test sub.open.test\n"
	b := ruleSet{text: file + "transfer zone.test open.test {\nto *\n}\ntransfer sub.open.test {\nto 127.0.0.1:5300\n}\ntransfer closed.test www.zone.test {\nto 192.0.2.1\nto 2001:db8::1\n}"}
	coredns, agent := s.serve(t, "coredns", b.corefile(), apiserver.Admin), s.serve(t, agentProgram(), b.corefile(), apiserver.Admin)
	const soa = "zone.test. 300 in soa ns1.zone.test. host.zone.test. 7 3600 600 86400 300"
	for name, tt := range map[string]struct {
		network string
		q       *dns.Msg
		// want, if not nil, is what the agent replies instead of what CoreDNS does, because of the reason.
		want   []string
		reason string
	}{
		"AXFR":                      {network: "tcp", q: new(dns.Msg).SetAxfr("zone.test.")},
		"AXFR with EDNS":            {network: "tcp", q: new(dns.Msg).SetAxfr("zone.test.").SetEdns0(1232, false)},
		"AXFR, spelled otherwise":   {network: "tcp", q: new(dns.Msg).SetAxfr("ZONE.test.")},
		"AXFR by address":           {network: "tcp", q: new(dns.Msg).SetAxfr("sub.open.test.")},
		"AXFR of another client":    {network: "tcp", q: new(dns.Msg).SetAxfr("closed.test.")},
		"AXFR of no zone":           {network: "tcp", q: new(dns.Msg).SetAxfr("ns1.zone.test.")},
		"AXFR of a name in no file": {network: "tcp", q: new(dns.Msg).SetAxfr("x.open.test.")},
		"AXFR of a denied name":     {network: "tcp", q: new(dns.Msg).SetAxfr("www.zone.test.")},
		"AXFR over UDP":             {network: "udp", q: new(dns.Msg).SetAxfr("zone.test.")},
		"AXFR over UDP of a denied": {network: "udp", q: new(dns.Msg).SetAxfr("closed.test.")},
		"AXFR over UDP of no zone":  {network: "udp", q: new(dns.Msg).SetAxfr("other.test.")},
		"IXFR, the same version":    {network: "tcp", q: new(dns.Msg).SetIxfr("zone.test.", 7, "ns.", "host.")},
		"IXFR, an older version":    {network: "tcp", q: new(dns.Msg).SetIxfr("zone.test.", 6, "ns.", "host.")},
		"IXFR, no version":          {network: "tcp", q: new(dns.Msg).SetIxfr("zone.test.", 0, "ns.", "host.")},
		"IXFR without SOA":          {network: "tcp", q: new(dns.Msg).SetQuestion("zone.test.", dns.TypeIXFR)},
		"IXFR of another client":    {network: "tcp", q: new(dns.Msg).SetIxfr("closed.test.", 7, "ns.", "host.")},
		"IXFR over UDP": {
			network: "udp", q: new(dns.Msg).SetIxfr("zone.test.", 6, "ns.", "host."),
			want: []string{"NOERROR", soa}, reason: "IXFR over UDP is answered with the SOA record (RFC 1995, 2)",
		},
		"IXFR, a later version": {
			network: "tcp", q: new(dns.Msg).SetIxfr("zone.test.", 8, "ns.", "host."),
			want: []string{"NOERROR", soa}, reason: "a client with a later version needs no zone (RFC 1995, 2)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, got := transferFrom(t, coredns, tt.network, tt.q), transferFrom(t, agent, tt.network, tt.q)
			if tt.want != nil {
				if cmp.Equal(tt.want, want) {
					t.Errorf("CoreDNS no longer differs: %s", tt.reason)
				}
				want = tt.want
			}
			check.Equal(t, want, got, "it differs")
		})
	}
}

// transferFrom returns the rcode and the records of a reply or of all messages of a transfer: sorted, in lower case, and with the
// number of SOA records that a transfer has.
func transferFrom(t *testing.T, server netip.AddrPort, network string, q *dns.Msg) []string {
	t.Helper()
	conn, err := dns.DialTimeout(network, server.String(), longWait)
	check.NoError(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(longWait))
	check.NoError(t, conn.WriteMsg(q))
	var list []string
	for ends := 0; ; {
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatalf("%s after %d records: %v", server, len(list), err)
		}
		rcode := dns.RcodeToString[m.Rcode]
		for _, rr := range m.Answer {
			list = append(list, strings.ToLower(strings.Join(strings.Fields(rr.String()), " ")))
			if rr.Header().Rrtype == dns.TypeSOA {
				ends++
			}
		}
		if m.Rcode != dns.RcodeSuccess || ends != 1 || len(list) == 1 {
			slices.Sort(list)
			return append([]string{rcode}, list...)
		}
	}
}
