package worst_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/worst"
)

// TestPointerBomb holds that the reply is one that a reader of DNS messages takes, and
// that nearly every name in it is as long as names get.
func TestPointerBomb(t *testing.T) {
	packed, err := worst.PointerBomb(new(dns.Msg).SetQuestion("b0000."+worst.Bombs, dns.TypeA))
	if err != nil {
		t.Fatal(err)
	}
	var m dns.Msg
	if err := m.Unpack(packed); err != nil {
		t.Fatal(err)
	}
	if len(packed) < 65500 || len(m.Answer) < 4500 {
		t.Errorf("%d bytes, %d records", len(packed), len(m.Answer))
	}
	if last := m.Answer[len(m.Answer)-1].(*dns.NS); len(last.Ns) != 240 || len(last.Hdr.Name) != 240 {
		t.Errorf("names of %d and %d letters, want 240", len(last.Hdr.Name), len(last.Ns))
	}
}

// TestCases starts an agent with all cases and holds that each of them is there: the
// attacker's first query gets an answer of the size and the records that make it dear.
func TestCases(t *testing.T) {
	up, err := worst.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	at := start(t, up.Addr())

	for _, c := range worst.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if len(c.Queries) == 0 {
				if c.Connections == 0 {
					t.Error("neither queries nor connections")
				}
				return
			}
			q := new(dns.Msg)
			if err := q.Unpack(c.Queries[0]); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(q.Question[0].Name, worst.Silence) {
				return // no answer is the point
			}
			client := dns.Client{Net: "tcp", Timeout: time.Minute}
			r, _, err := client.Exchange(q, at.String())
			if err != nil {
				t.Fatal(err)
			}
			want := expected[c.Name]
			if r.Rcode != want.rcode || len(r.Answer) < want.least {
				t.Errorf("%s with %d answers, want %s with at least %d",
					dns.RcodeToString[r.Rcode], len(r.Answer), dns.RcodeToString[want.rcode], want.least)
			}
		})
	}
}

// expected is what the agent answers over TCP, by the case's name: the rcode, and how
// many records at least.
var expected = map[string]struct{ rcode, least int }{
	"PTR of a shared address":       {dns.RcodeSuccess, 2000},
	"SRV, many ports":               {dns.RcodeSuccess, 900},
	"SRV, many endpoints":           {dns.RcodeSuccess, 900},
	"A, many endpoints":             {dns.RcodeSuccess, 4000},
	"A, many slices":                {dns.RcodeSuccess, 1000},
	"aliases":                       {dns.RcodeSuccess, 8},
	"external addresses":            {dns.RcodeSuccess, 1000},
	"long lists of a Service":       {dns.RcodeSuccess, 1024},
	"many addresses of an endpoint": {dns.RcodeSuccess, 800},
	"search path":                   {dns.RcodeNameError, 0},
	"access list":                   {dns.RcodeSuccess, 1},
	"rewrite rules":                 {dns.RcodeSuccess, 1},
	"hosts table":                   {dns.RcodeSuccess, 1000},
	"compression pointers":          {dns.RcodeServerFailure, 0},
	"large replies":                 {dns.RcodeSuccess, 4000},
	"many addresses":                {dns.RcodeSuccess, 1000},
	"SRV over TCP":                  {dns.RcodeSuccess, 900},
}

// start starts an agent and gives its address.
func start(t *testing.T, upstream netip.AddrPort) netip.AddrPort {
	t.Helper()
	dir := t.TempDir()
	if err := worst.Write(dir); err != nil {
		t.Fatal(err)
	}
	ports := peer.Ports(t, 2)
	text := strings.NewReplacer("@LISTEN@", "127.0.0.1", "@PORT@", strconv.Itoa(int(ports[0])), "@METRICS@", strconv.Itoa(int(ports[1])),
		"@TO@", upstream.String(), "@FILES@", dir).Replace(worst.Corefile())
	p := peer.StartServer(t, text, peer.Command{Name: "nodens"})
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ports[0])
	p.Must(t, "the agent", peer.Answers(at))
	return at
}
