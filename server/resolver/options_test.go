package resolver_test

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// optionsBackend is an upstream that answers with the options of the query: a TXT record for each, with code and
// data in hexadecimal.
type optionsBackend struct {
	*resolvertest.Backend
	mu    sync.Mutex
	asked []string
}

func startOptionsBackend(t testing.TB) *optionsBackend {
	b := new(optionsBackend)
	b.Backend = resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}
		texts := optionTexts(q)
		for _, text := range texts {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: h, Txt: []string{text}})
		}
		if opt := q.IsEdns0(); opt != nil { // as servers echo what they have used
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = opt.Option
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.asked = append(b.asked, strings.Join(append([]string{q.Question[0].Name}, texts...), " "))
		return m
	})
	return b
}

// queries returns what was asked since the last call, sorted.
func (b *optionsBackend) queries() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.asked
	b.asked = nil
	slices.Sort(list)
	return list
}

// optionTexts returns the options of m, except for the agent's cookie.
func optionTexts(m *dns.Msg) (list []string) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			switch o := o.(type) {
			case *dns.EDNS0_SUBNET:
				list = append(list, o.String())
			case *dns.EDNS0_COOKIE:
			case *dns.EDNS0_LOCAL:
				list = append(list, fmt.Sprintf("%d:%s", o.Code, hex.EncodeToString(o.Data)))
			default:
				list = append(list, fmt.Sprintf("%d:%s", o.Option(), o))
			}
		}
	}
	return list
}

// queryFrom sends q from a loopback address, and returns the texts of the TXT records in the reply, sorted.
func queryFrom(t testing.TB, from, network string, to netip.AddrPort, q *dns.Msg) []string {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP(from)}
	if network == "tcp" {
		local = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c := dns.Client{Net: network, Timeout: patience, UDPSize: dns.MaxMsgSize, Dialer: &net.Dialer{LocalAddr: local, Timeout: patience}}
	m, _, err := c.Exchange(q, to.String())
	if err != nil {
		t.Fatalf("%s from %s: %v", q.Question[0].String(), from, err)
	}
	if m.Rcode != dns.RcodeSuccess {
		return []string{dns.RcodeToString[m.Rcode]}
	}
	if options := optionTexts(m); len(options) > 0 {
		t.Errorf("%s: the reply has the options %s", from, options)
	}
	list := []string{}
	for _, rr := range m.Answer {
		list = append(list, rr.(*dns.TXT).Txt...)
	}
	slices.Sort(list)
	return list
}

// TestRewriteOptions: the options that upstreams get, and that an answer for one client is not given to another.
func TestRewriteOptions(t *testing.T) {
	const one, two = "127.0.0.1", "127.0.1.1"
	txt := func(options ...dns.EDNS0) *dns.Msg {
		q := question("www.example.org.", dns.TypeTXT)
		if len(options) > 0 {
			q.SetEdns0(1232, false)
			q.IsEdns0().Option = options
		}
		return q
	}
	type ask struct {
		from string
		q    *dns.Msg
		want []string
	}
	for _, tt := range []struct {
		name, rules string
		asks        []ask
		exchanges   int
	}{
		{"a constant is for all", "rewrite edns0 local set 0xffee abcd", []ask{
			{one, txt(), []string{"65518:61626364"}}, {two, txt(), []string{"65518:61626364"}},
		}, 1},
		{"each subnet has its answer", "rewrite edns0 subnet set 24 56", []ask{
			{one, txt(), []string{"127.0.0.0/24/0"}}, {two, txt(), []string{"127.0.1.0/24/0"}},
			{one, txt(), []string{"127.0.0.0/24/0"}}, {"127.0.0.2", txt(), []string{"127.0.0.0/24/0"}},
		}, 2},
		{"each address has its answer", "rewrite edns0 local set 0xffee {client_ip}", []ask{
			{one, txt(), []string{"65518:7f000001"}}, {"127.0.0.2", txt(), []string{"65518:7f000002"}}, {one, txt(), []string{"65518:7f000001"}},
		}, 2},
		{"the client's own value is for those who send the same", "rewrite edns0 local append 0xffee ab", []ask{
			{one, txt(), []string{"65518:6162"}},
			{one, txt(&dns.EDNS0_LOCAL{Code: 65518, Data: []byte("x")}), []string{"65518:78"}},
			{two, txt(&dns.EDNS0_LOCAL{Code: 65518, Data: []byte("y")}), []string{"65518:79"}},
			{two, txt(), []string{"65518:6162"}},
			{two, txt(&dns.EDNS0_LOCAL{Code: 65518, Data: []byte("x")}), []string{"65518:78"}},
		}, 3},
		{"no other option of the client", "rewrite edns0 local append 0xffee ab", []ask{
			{one, txt(&dns.EDNS0_LOCAL{Code: 65519, Data: []byte("x")}, &dns.EDNS0_NSID{Code: dns.EDNS0NSID}), []string{"65518:6162"}},
		}, 1},
		{"unset", "rewrite edns0 local unset 0xffee", []ask{
			{one, txt(&dns.EDNS0_LOCAL{Code: 65518, Data: []byte("x")}), []string{}}, {two, txt(), []string{}},
		}, 1},
		{"by a rule for names", "rewrite continue edns0 local set 0xffee {qname}\nrewrite name www.example.org www.test", []ask{
			{one, txt(), []string{"65518:" + hex.EncodeToString([]byte("www.example.org."))}},
		}, 1},
		{"too many", "rewrite continue edns0 local set 1 " + strings.Repeat("a", 500) + "\nrewrite edns0 local set 2 " + strings.Repeat("a", 500), []ask{
			{one, txt(), []string{"SERVFAIL"}},
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := startOptionsBackend(t)
			_, addr := start(t, server.Limits{}, ruled(t, tt.rules, b.Addr()))
			for _, a := range tt.asks {
				for _, network := range []string{"udp", "tcp"} {
					explainFirst(t, network, addr, a.q)
					if diff := cmp.Diff(a.want, queryFrom(t, a.from, network, addr, a.q)); diff != "" {
						t.Errorf("%s over %s (-want +got):\n%s", a.from, network, diff)
					}
				}
			}
			if list := b.queries(); len(list) != tt.exchanges {
				t.Errorf("upstream got %q, want %d queries", list, tt.exchanges)
			}
		})
	}
}

// TestRewriteOptionsUncached: an answer for one port is not kept, as no other query can use it.
func TestRewriteOptionsUncached(t *testing.T) {
	b := startOptionsBackend(t)
	z := ruled(t, "rewrite edns0 local set 0xffee {client_port}", b.Addr())
	_, addr := start(t, server.Limits{}, z)
	for range 2 {
		queryFrom(t, "127.0.0.1", "udp", addr, question("www.example.org.", dns.TypeTXT))
	}
	if n := len(b.queries()); n != 2 {
		t.Errorf("%d queries", n)
	}
	if s := z.Cache.Stats(); s.Requests != 0 || s.Entries.Success != 0 {
		t.Errorf("the cache was asked: %+v", s)
	}
}

// TestRewriteOptionsElsewhere: the options are for the upstreams of the zone whose rules made them. The target of
// an alias in another zone, with other upstreams, is asked without them.
func TestRewriteOptionsElsewhere(t *testing.T) {
	b := startOptionsBackend(t)
	inner := ruled(t, "rewrite edns0 subnet set 24 56\ntemplate IN A t.test {\nanswer \"{{ .Name }} 5 IN CNAME www.other.test\"\n}", b.Addr())
	inner.Name = resolvertest.ZoneName(t, "t.test.")
	other := &resolver.Zone{Name: resolvertest.ZoneName(t, "other.test."), Forward: resolvertest.Pool(t, b.Addr())}
	_, addr := start(t, server.Limits{}, inner, other)
	query(t, "udp", addr, question("x.t.test.", dns.TypeA))
	if diff := cmp.Diff([]string{"www.other.test."}, b.queries()); diff != "" {
		t.Errorf("upstream got (-want +got):\n%s", diff)
	}
}

// TestRewriteOptionsAllocs: a hit with options allocates no more than one by another name.
func TestRewriteOptionsAllocs(t *testing.T) {
	if race.Enabled() {
		t.Skip("pools are not kept under the race detector")
	}
	b := resolvertest.StartBackend(t, outer)
	serve := unconnected(t, ruled(t, "rewrite continue edns0 local set 0xffee {client_ip}\nrewrite edns0 subnet set 24 56", b.Addr()))
	serve("www.example.org.")
	if n := testing.AllocsPerRun(100, func() {
		if serve("www.example.org.") != resolver.Answered {
			t.Fatal("not a hit")
		}
	}); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

// TestExplainOptions: the trace names the options that upstreams would get.
func TestExplainOptions(t *testing.T) {
	z := ruled(t, "rewrite edns0 subnet set 24 56", netip.AddrPortFrom(loopback, 9))
	z.Stats = resolver.NewStats()
	packet, err := question("www.example.org.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	x, verdict := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats()).Explain(packet, netip.AddrPortFrom(loopback, 4242), resolver.UDP)
	if verdict != wire.Serve || !strings.Contains(fmt.Sprintf("%+v", x), "EDNS option 8 for upstreams") {
		t.Errorf("verdict %d, explained %+v", verdict, x)
	}
}
