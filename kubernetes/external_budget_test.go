// Internal: counts the steps of a Budget.

package kubernetes

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// The cost of answers for external names is bounded by the size of the reply and, on a
// reader, by the budget.
func TestExternalAnswersAreBounded(t *testing.T) {
	const n = 5000
	for _, c := range []struct {
		name, qname string
		qtype       uint16
		make        func(w worstCase)
		// At 1,232 bytes and at 64 KiB: large says that it takes a worker, and steps is the
		// most that it may take in all.
		large [2]bool
		steps [2]int
	}{
		{"A of a Service with 5,000 addresses", "big.tenant.ext.example.", dns.TypeA, func(w worstCase) {
			w.service("big", service{kind: clusterIP, external4: packed(podNet, n), ports: makePorts(20, 1)})
		}, [2]bool{false, true}, [2]int{300, n}},
		{"SRV of a Service with 5,000 addresses", "big.tenant.ext.example.", dns.TypeSRV, func(w worstCase) {
			w.service("big", service{kind: clusterIP, external4: packed(podNet, n), ports: makePorts(20, 1)})
		}, [2]bool{true, true}, [2]int{25000, 40000}},
		{"PTR of an address of 5,000 Services", "3.2.1.10.in-addr.arpa.", dns.TypePTR, func(w worstCase) {
			for i := range n {
				w.service(fmt.Sprintf("s%05d", i), service{kind: clusterIP, external4: packed(podAddress, 1)})
			}
		}, [2]bool{true, true}, [2]int{1100, 51000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorstCase()
			c.make(w)
			zones := []wire.Name{outsideName(t, "ext.example"), outsideName(t, "in-addr.arpa")}
			z := NewExternal(w.View, &config.K8sExternal{Zones: zones, TTL: 5}, testConfig(t))
			for i, limit := range []int{1232, wire.MaxMessage} {
				r, outcome, took := w.answer(t, z, c.qname, c.qtype, limit, noBudget)
				if outcome != Answered || r.Count(wire.Answer) == 0 || took > c.steps[i] {
					t.Errorf("limit %d: outcome %d with %d records after %d steps, want at most %d", limit, outcome, r.Count(wire.Answer), took, c.steps[i])
				}
				t.Logf("limit %d: %d steps", limit, took)
				_, outcome, _ = w.answer(t, z, c.qname, c.qtype, limit, readerSteps)
				if (outcome == OverBudget) != c.large[i] {
					t.Errorf("limit %d: outcome %d on a reader", limit, outcome)
				}
			}
		})
	}
}

func outsideName(t *testing.T, text string) wire.Name {
	t.Helper()
	name, err := wire.ParseName(text)
	noError(t, err)
	return name
}
