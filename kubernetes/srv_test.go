package kubernetes

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestTruncatedSample: SRV records and addresses that a reply has no room for are others each time, so that a client that never asks
// over TCP finds each endpoint; a complete answer has all of them.
func TestTruncatedSample(t *testing.T) {
	const endpoints = 120
	v := newCountersOf(20).newView(emptyView())
	handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	handlerFixture{v, services}.put(makeService("a", "db", "None"))
	for slice := range 3 {
		addrs := make([]string, endpoints/3)
		for i := range addrs {
			addrs[i] = fmt.Sprintf("10.0.%d.%d", slice, i)
		}
		handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", fmt.Sprintf("db-%d", slice), addrs...))
	}
	cfg := testConfig(t)
	cfg.Topology = config.TopologyOff
	z := NewZone(v, cfg)
	for _, qtype := range []uint16{dns.TypeSRV, dns.TypeA} {
		for _, limit := range []int{512, 1232, wire.MaxMessage} {
			found := map[string]int{}
			rounds := 300
			for range rounds {
				m := new(dns.Msg)
				err := m.Unpack(largeReply(t, "db.a.svc.cluster.local", qtype, limit, func(q *wire.Query, r *wire.Reply) (Outcome, wire.Name) { return z.Answer(q, r, nil) }))
				if err != nil || m.Truncated != (limit < wire.MaxMessage) || !m.Authoritative {
					t.Fatalf("TC is %v, AA %v: %v", m.Truncated, m.Authoritative, err)
				}
				seen := map[string]bool{}
				for _, rr := range m.Answer {
					seen[rr.String()] = true
					found[rr.String()]++
				}
				if len(seen) != len(m.Answer) {
					t.Fatal("a record is there twice")
				}
			}
			if len(found) != endpoints {
				t.Errorf("%s, %d bytes: %d of %d records were found in %d replies", dns.TypeToString[qtype], limit, len(found), endpoints, rounds)
			}
		}
	}
}
