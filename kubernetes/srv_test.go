package kubernetes

import (
	"fmt"
	"strings"
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

// TestSampleOfOneEndpoint: the address in an answer about one endpoint of a Service with many has the name of the SRV record's target,
// wherever the sample begins.
func TestSampleOfOneEndpoint(t *testing.T) {
	const name = "10-0-0-25.db.a.svc.cluster.local."
	v := newCountersOf(20).newView(emptyView())
	handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	handlerFixture{v, services}.put(makeService("a", "db", "None"))
	var addrs []string
	for i := range 26 { // one more than there may be without a sample
		addrs = append(addrs, fmt.Sprintf("10.0.0.%d", i))
	}
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-0", addrs...))
	z := NewZone(v, testConfig(t))
	for range 300 {
		m := new(dns.Msg)
		err := m.Unpack(largeReply(t, strings.TrimSuffix(name, "."), dns.TypeSRV, 512, func(q *wire.Query, r *wire.Reply) (Outcome, wire.Name) { return z.Answer(q, r, nil) }))
		if err != nil || m.Truncated || len(m.Answer) != 1 || len(m.Extra) != 1 {
			t.Fatalf("%v, the reply is %v", err, m)
		}
		if target, owner := m.Answer[0].(*dns.SRV).Target, m.Extra[0].Header().Name; target != name || owner != name {
			t.Fatalf("the target is %s, the owner of its address %s, want %s", target, owner, name)
		}
	}
}
