// Internal: feeds a view by its handlers.

package kubernetes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/file"
)

// egressFilter is a packet filter that only notes what it is to have.
type egressFilter struct {
	pods  map[string][]netip.Addr
	prune bool
}

func (f *egressFilter) Sync(pods map[string][]netip.Addr, prune bool) ([]string, error) {
	f.pods, f.prune = pods, prune
	return nil, nil
}

func (f *egressFilter) Add([]dnspolicy.Element) error { return nil }

// newEgressFixture returns a view whose policies may have sets, and what these are.
func newEgressFixture(t *testing.T) (*policyFixture, *egressFilter) {
	filter := new(egressFilter)
	e := dnspolicy.NewEgress(filter, slog.New(slog.DiscardHandler))
	go e.Run(t.Context())
	v := emptyView()
	v.node = "n1"
	f := &policyFixture{t, v, dnspolicy.NewTable()}
	v.policies = newPolicySet(v, f.table, new(dnspolicy.Counters), e)
	return f, filter
}

// withSet returns the policy with an egressSet.
func withSet(p *dnsPolicy) *dnsPolicy {
	p.Spec.EgressSet = true
	return p
}

// TestPolicyEgress: the sets are those of the policies that ask for one, with the pods that they bind on this node.
func TestPolicyEgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, filter := newEgressFixture(t)
		want := func(when string, prune bool, pods map[string]string) {
			t.Helper()
			synctest.Wait()
			got := make(map[string]string)
			for policy, addrs := range filter.pods {
				got[policy] = strings.Trim(fmt.Sprint(addrs), "[]")
			}
			if diff := cmp.Diff(pods, got, cmpopts.EquateEmpty()); diff != "" || filter.prune != prune {
				t.Errorf("%s (-want +got), prune %t:\n%s", when, filter.prune, diff)
			}
		}
		web := map[string]string{"app": "web"}
		f.put(withSet(policyObject("a", "p", web, "a.test")))
		want("before the lists", false, nil)
		f.list()
		want("after empty lists", true, nil)
		f.put(withSet(policyObject("a", "p", web, "a.test")))
		f.put(withSet(policyObject("a", "q", nil, "a.test")))
		f.put(policyObject("a", "none", nil, "a.test"))
		want("without pods", true, map[string]string{"a/p": "", "a/q": ""})
		f.put(labelledPod("a", "w2", "10.0.0.2", web))
		f.put(labelledPod("a", "w1", "10.0.0.1", web))
		f.put(labelledPod("a", "db", "fd00::3", nil))
		f.put(labelledPod("b", "w", "10.0.0.4", web))
		want("with pods", true, map[string]string{"a/p": "10.0.0.1 10.0.0.2", "a/q": "10.0.0.1 10.0.0.2 fd00::3"})
		for client, sets := range map[string]int{"10.0.0.1": 2, "fd00::3": 1, "10.0.0.4": 0} {
			if n := len(f.table.ClassOf(netip.MustParseAddr(client)).Filtered()); n != sets {
				t.Errorf("answers to %s enter %d sets, want %d", client, n, sets)
			}
		}
		f.put(policyObject("a", "p", web, "a.test"))
		f.drop(labelledPod("a", "w1", "10.0.0.1", web))
		want("after a change", true, map[string]string{"a/q": "10.0.0.2 fd00::3"})
		f.drop(policyObject("a", "q", nil))
		want("without policies", true, nil)
	})
}

// TestPolicyEgressBounds: tenants can't make any number of sets, nor names that are too long.
func TestPolicyEgressBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, filter := newEgressFixture(t)
		f.list()
		f.put(withSet(policyObject("a", strings.Repeat("x", maxEgressName), nil)))
		for i := range maxNamespaceEgress + 2 {
			f.put(withSet(policyObject("a", fmt.Sprint("p", i), nil)))
			f.put(withSet(policyObject("a", fmt.Sprint("p", i), nil, "a.test")))
		}
		synctest.Wait()
		if n := len(filter.pods); n != maxNamespaceEgress {
			t.Errorf("a namespace has %d sets", n)
		}
		for i := range 2 * maxEgressPolicies {
			f.put(withSet(policyObject(fmt.Sprint("n", i), "p", nil)))
		}
		synctest.Wait()
		if n := len(filter.pods); n != maxEgressPolicies {
			t.Errorf("there are %d sets", n)
		}
		f.drop(policyObject("a", "p0", nil))
		f.put(withSet(policyObject("b", "p", nil)))
		synctest.Wait()
		if _, ok := filter.pods["b/p"]; !ok || len(filter.pods) != maxEgressPolicies {
			t.Errorf("of %d sets, none has taken the place of another one", len(filter.pods))
		}
	})
}

// TestSavedEgress: the sets of a saved view stay until the lists are there.
func TestSavedEgress(t *testing.T) {
	cfg := savedConfig(t, filepath.Join(t.TempDir(), "view"))
	f := openPolicies(t, cfg, true)
	f.list()
	f.put(withSet(policyObject("a", "p", nil, "a.test")))
	f.put(labelledPod("a", "w", "10.0.0.1", nil))
	noError(t, file.Replace(cfg.Save, savedView{f.view}.writeSaved))
	synctest.Test(t, func(t *testing.T) {
		filter := new(egressFilter)
		e := dnspolicy.NewEgress(filter, slog.New(slog.DiscardHandler))
		go e.Run(t.Context())
		table := dnspolicy.NewTable()
		v, err := Open(cfg, Options{Now: testClock, Node: "n1", Policies: table, Egress: e})
		noError(t, err)
		synctest.Wait()
		if diff := cmp.Diff(map[string][]netip.Addr{"a/p": {netip.MustParseAddr("10.0.0.1")}}, filter.pods, cmpopts.EquateComparable(netip.Addr{})); diff != "" || filter.prune {
			t.Errorf("restored (-want +got), prune %t:\n%s", filter.prune, diff)
		}
		back := &policyFixture{t, v, table}
		back.list()
		synctest.Wait()
		if len(filter.pods) != 0 || !filter.prune {
			t.Errorf("after empty lists: %v, prune %t", filter.pods, filter.prune)
		}
	})
}
