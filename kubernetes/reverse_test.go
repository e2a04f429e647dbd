// Internal: uses the fixtures of internal tests.

package kubernetes

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

func TestAnswerReverse(t *testing.T) {
	z := NewZone(openText(t, testConfig(t), cluster), testConfig(t))
	v6, err := dns.ReverseAddr("fd00:10::a")
	noError(t, err)
	shared, err := dns.ReverseAddr("fd00:1::")
	noError(t, err)
	checkAnswers(t, z, []answerCase{
		{"10.0.96.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 10.0.96.10.in-addr.arpa. 30 IN PTR web.default.svc.cluster.local. |"},
		{"10.0.96.10.in-addr.arpa", dns.TypeA, noptr},
		{v6, dns.TypePTR, "answered NOERROR | " + v6 + " 30 IN PTR web.default.svc.cluster.local. |"},
		{shared, dns.TypePTR, "answered NOERROR | " + shared + " 30 IN PTR fd00-1--0.db.default.svc.cluster.local. |"},
		{"1.1.1.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 1.1.1.10.in-addr.arpa. 30 IN PTR db-0.db.default.svc.cluster.local. |"},
		{"3.1.1.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 3.1.1.10.in-addr.arpa. 30 IN PTR 10-1-1-3.db.default.svc.cluster.local. |"},
		{"1.0.1.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 1.0.1.10.in-addr.arpa. 30 IN PTR 10-1-0-1.web.default.svc.cluster.local. |"},
		{"4.1.1.10.in-addr.arpa", dns.TypePTR, nxptr},
		{"010.0.96.10.in-addr.arpa", dns.TypePTR, nxptr},
		{"0.96.10.in-addr.arpa", dns.TypePTR, nxptr},
		{"x.10.0.96.10.in-addr.arpa", dns.TypePTR, nxptr},
		{"in-addr.arpa", dns.TypePTR, noptr},
	})
	cfg := testConfig(t)
	cfg.Zones = names(t, "cluster.local", "96.10.in-addr.arpa")
	checkAnswers(t, NewZone(z.View(), cfg), []answerCase{
		{"10.0.96.10.in-addr.arpa", dns.TypePTR, "answered NOERROR | 10.0.96.10.in-addr.arpa. 30 IN PTR web.default.svc.cluster.local. |"},
		{"1.1.1.10.in-addr.arpa", dns.TypePTR, "not mine NOERROR |"},
		{v6, dns.TypePTR, "not mine NOERROR |"},
	})
}

// A pod behind many services has many names. Ten fit into one small answer; with so many
// that offsets exceed the range of pointers, all are still right.
func TestAnswerManyPointers(t *testing.T) {
	const name = "1.0.1.10.in-addr.arpa"
	for _, c := range []struct{ names, most int }{{10, 512}, {1000, wire.MaxMessage}} {
		t.Run(fmt.Sprint(c.names), func(t *testing.T) {
			v := emptyView()
			z := NewZone(v, testConfig(t))
			want := map[string]bool{}
			for i := range c.names {
				ns, service := fmt.Sprintf("team-%d", i%3), fmt.Sprintf("service-%d", i)
				handlerFixture{v, services}.put(makeService(ns, service, "None"))
				handlerFixture{v, endpointSlices}.put(makeSlice(ns, service, service, "10.1.0.1"))
				want[fmt.Sprintf("10-1-0-1.%s.%s.svc.cluster.local.", service, ns)] = true
			}
			if n := packedLen(t, z, name, dns.TypePTR); n > c.most {
				t.Errorf("%d bytes, want at most %d", n, c.most)
			}
			m, _, _ := ask(t, z, name, dns.TypePTR)
			m.Compress = false
			if m.Len() < 512 {
				t.Errorf("%d bytes even without compression: the test tests nothing", m.Len())
			}
			for _, rr := range m.Answer {
				ptr, ok := rr.(*dns.PTR)
				if !ok || !want[ptr.Ptr] {
					t.Fatalf("unexpected %v", rr)
				}
				delete(want, ptr.Ptr)
			}
			if len(want) > 0 {
				t.Errorf("missing: %v", want)
			}
		})
	}
}

// packedLen is the size of an answer on the wire.
func packedLen(t *testing.T, z *Zone, name string, qtype uint16) int {
	t.Helper()
	var q wire.Query
	var r wire.Reply
	q.Parse(packQuery(t, name, qtype))
	r.Start(nil, &q)
	z.Answer(&q, &r, nil)
	return len(r.Finish(wire.MaxMessage))
}
