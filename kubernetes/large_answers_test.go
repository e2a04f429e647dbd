// Internal: feeds handlers and looks at what is kept.

package kubernetes

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// largeReply returns the reply that answer makes to a query for name, with that limit.
func largeReply(t *testing.T, name string, qtype uint16, limit int, answer func(*wire.Query, *wire.Reply) (Outcome, wire.Name)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	m.Id = 1
	packet, err := m.Pack()
	noError(t, err)
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		t.Fatal("the query does not parse")
	}
	var r wire.Reply
	r.Start(nil, &q)
	r.SetLimit(limit)
	if outcome, _ := answer(&q, &r); outcome != Answered {
		t.Fatalf("%s: outcome %v", name, outcome)
	}
	return r.Finish(limit)
}

// TestLargeAnswers: an answer that is kept is what would be made now, after each change of anything, and the memory is
// bounded.
func TestLargeAnswers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	v := newCountersOf(20).newView(emptyView())
	handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	headless := []string{"db", "web", "other"}
	put := func(service string, slice int) {
		addrs := make([]string, 500)
		for i := range addrs {
			addrs[i] = fmt.Sprintf("10.%d.%d.%d", slice, rng.IntN(256), rng.IntN(256))
		}
		handlerFixture{v, endpointSlices}.put(makeSlice("a", service, fmt.Sprintf("%s-%d", service, slice), addrs...))
	}
	for _, service := range headless {
		handlerFixture{v, services}.put(makeService("a", service, "None"))
		for slice := range 3 {
			put(service, slice)
		}
	}
	cfg := testConfig(t)
	cfg.Topology = config.TopologyOff
	z := NewZone(v, cfg)
	kept := 0
	for step := range 200 {
		for _, service := range headless {
			name, limit := service+".a.svc.cluster.local", []int{wire.MaxMessage, 1232}[rng.IntN(2)]
			want := largeReply(t, name, dns.TypeA, limit, func(q *wire.Query, r *wire.Reply) (Outcome, wire.Name) { return z.Answer(q, r, nil) })
			for range 2 {
				got := largeReply(t, name, dns.TypeA, limit, z.AnswerLarge)
				if limit < wire.MaxMessage { // which of the records, is random
					want, got = want[:wire.HeaderLen], got[:wire.HeaderLen]
				}
				if !bytes.Equal(want, got) {
					t.Fatalf("step %d: the answer for %s is another one", step, service)
				}
			}
			kept = max(kept, len(z.large.byKey))
		}
		switch rng.IntN(3) {
		case 0:
			put(headless[rng.IntN(3)], rng.IntN(3))
		case 1:
			service := headless[rng.IntN(3)]
			handlerFixture{v, endpointSlices}.drop(makeSlice("a", service, service+"-1"))
		case 2:
			handlerFixture{v, services}.put(makeService("a", "nothing", fmt.Sprintf("10.96.0.%d", step)))
		}
	}
	if kept < 3 {
		t.Errorf("%d answers were kept", kept)
	}
	for limit := range 200 {
		largeReply(t, "db.a.svc.cluster.local", dns.TypeA, wire.MaxMessage-limit, z.AnswerLarge)
	}
	if n := z.large.used.Len(); z.large.bytes > maxLargeBytes || n != len(z.large.byKey) || n < 2 {
		t.Errorf("%d answers with %d bytes, %d keys", n, z.large.bytes, len(z.large.byKey))
	}
}

// TestLargeAnswersAreMadeOnce: an answer that is kept is not made again.
func TestLargeAnswersAreMadeOnce(t *testing.T) {
	v := newCountersOf(20).newView(emptyView())
	handlerFixture{v, namespaces}.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	handlerFixture{v, services}.put(makeService("a", "db", "None"))
	addrs := make([]string, 1000)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("10.0.%d.%d", i/250, i%250)
	}
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-1", addrs...))
	cfg := testConfig(t)
	cfg.Topology = config.TopologyOff
	z := NewZone(v, cfg)
	const name = "db.a.svc.cluster.local"
	first := largeReply(t, name, dns.TypeA, wire.MaxMessage, z.AnswerLarge)
	element := z.large.used.Front()
	if element == nil {
		t.Fatal("the answer is not kept")
	}
	for range 3 {
		if !bytes.Equal(first, largeReply(t, name, dns.TypeA, wire.MaxMessage, z.AnswerLarge)) {
			t.Fatal("another answer")
		}
	}
	if z.large.used.Front() != element {
		t.Error("the answer was made again")
	}
}
