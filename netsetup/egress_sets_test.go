package netsetup

// Inside the package: other tests inside use these helpers.

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// pod4 and pod6 are addresses of a pod.
var pod4, pod6 = netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("fd00::7")

// element returns an element of the policy shop/pay.
func element(addr string, timeout time.Duration) dnspolicy.Element {
	return dnspolicy.Element{Policy: "shop/pay", Addr: netip.MustParseAddr(addr), Timeout: timeout}
}

// TestEgressSets: sets are made when a policy asks for them, hold what is added with its last timeout, survive the agent, and go
// with the policy unless another program's rules use them.
func TestEgressSets(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		e := new(EgressSets)
		wantErr := func(err error, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("the error is %v, want %v", err, want)
			}
		}
		wantErr(e.Add([]dnspolicy.Element{element("192.0.2.1", time.Minute)}), dnspolicy.ErrNoSet)
		_, err := e.Sync(nil, true)
		check.NoError(t, err)
		check.Equal(t, "", sh(t, "nft list ruleset"), "without policies")

		pods := map[string][]netip.Addr{"shop/pay": {pod4, pod6}, "1a.b/x.y-z": nil}
		renewed, err := e.Sync(pods, true)
		check.NoError(t, err)
		check.Equal(t, 2, len(renewed), "new sets")
		check.Equal(t, 8, strings.Count(sh(t, "nft list sets"), "set "), "sets of two policies")
		for _, set := range []string{"pods4/shop/pay", "pods6/shop/pay"} {
			if text := sh(t, "nft list set inet nodens-egress "+set); !strings.Contains(text, pod4.String()) && !strings.Contains(text, pod6.String()) {
				t.Errorf("the pod is not in %s", text)
			}
		}
		add := func(list ...dnspolicy.Element) { t.Helper(); check.NoError(t, e.Add(list)) }
		add(element("192.0.2.1", time.Hour), element("2001:db8::1", time.Hour))
		add(element("192.0.2.1", 2*time.Hour), element("192.0.2.2", time.Hour))
		to4 := func() string { t.Helper(); return sh(t, "nft list set inet nodens-egress to4/shop/pay") }
		if text := to4(); !strings.Contains(text, "192.0.2.1 timeout 2h") || !strings.Contains(text, "192.0.2.2 timeout 1h") {
			t.Errorf("the set is %s", text)
		}

		// The successor changes nothing, and its pods replace those of e.
		next := new(EgressSets)
		before := to4()
		_, err = next.Sync(map[string][]netip.Addr{"shop/pay": {pod4}}, false)
		check.NoError(t, err)
		if !strings.Contains(to4(), "192.0.2.1 timeout 2h") {
			t.Errorf("after a hand-over the set is %s, before %s", to4(), before)
		}
		if text := sh(t, "nft list set inet nodens-egress pods6/shop/pay"); strings.Contains(text, pod6.String()) {
			t.Errorf("the address that the pod had is in %s", text)
		}

		// Sets of a policy that is gone go, but those that rules use are only emptied.
		sh(t, `nft 'table inet nodens-egress { chain forward { type filter hook forward priority 0; ip daddr @to4/shop/pay counter; ip saddr @pods4/1a.b/x.y-z drop; }; }'`)
		_, err = next.Sync(nil, true)
		check.NoError(t, err)
		check.Equal(t, 2, strings.Count(sh(t, "nft list sets"), "set "), "sets that rules use")
		if strings.Contains(to4(), "192.0.2") {
			t.Errorf("the set of a policy that is gone is %s", to4())
		}
		removed, used, err := new(kernelNode).cleanEgressSets()
		check.NoError(t, err)
		check.Equal(t, [2]int{0, 2}, [2]int{removed, used}, "cleaned, and used by rules")
		sh(t, "nft delete chain inet nodens-egress forward")
		removed, used, err = new(kernelNode).cleanEgressSets()
		check.NoError(t, err)
		check.Equal(t, [2]int{2, 0}, [2]int{removed, used}, "cleaned")
		check.Equal(t, "", sh(t, "nft list ruleset"), "in the end")
	})
}

// TestEgressSetsLost: a Sync notices that another program has removed the sets, or has made them anew.
func TestEgressSetsLost(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		e := new(EgressSets)
		pods := map[string][]netip.Addr{"shop/pay": {pod4}}
		sync := func(want int) {
			t.Helper()
			renewed, err := e.Sync(pods, true)
			check.NoError(t, err)
			check.Equal(t, want, len(renewed), "sets that are not those of the call before")
		}
		own := `nft 'table inet nodens-egress { set to4/shop/pay { type ipv4_addr; flags timeout; size 8192; }; chain c { ip daddr @to4/shop/pay accept; }; }'`
		sh(t, own) // an operator's, before the agent starts
		sync(1)
		sync(0)
		sh(t, own)
		sync(0)
		sh(t, "nft flush ruleset")
		sync(1)
		sh(t, "nft flush ruleset; "+own)
		sync(1)
		if !strings.Contains(sh(t, "nft list set inet nodens-egress pods4/shop/pay"), pod4.String()) {
			t.Error("the pod is not in the new set")
		}
	})
}

// TestEgressSetsFull: a set that is full in the kernel takes no other address, and goes on giving those that it has another timeout.
func TestEgressSetsFull(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		e := new(EgressSets)
		_, err := e.Sync(map[string][]netip.Addr{"shop/pay": nil}, true)
		check.NoError(t, err)
		var all []dnspolicy.Element
		addr := netip.MustParseAddr("192.0.0.1")
		for range egressKernelSize {
			all = append(all, dnspolicy.Element{Policy: "shop/pay", Addr: addr, Timeout: time.Hour})
			addr = addr.Next()
		}
		for part := range slices.Chunk(all, dnspolicy.MaxEgressAddrs/4) {
			check.NoError(t, e.Add(part))
		}
		if err := e.Add([]dnspolicy.Element{{Policy: "shop/pay", Addr: addr, Timeout: time.Hour}}); !errors.Is(err, errEgressSetFull) {
			t.Errorf("adding to a full set: %v, want %v", err, errEgressSetFull)
		}
	})
}

// BenchmarkEgressSets is what an answer waits for if its address is not in the set, or has to get another timeout.
func BenchmarkEgressSets(b *testing.B) {
	e := new(EgressSets)
	if _, err := e.Sync(map[string][]netip.Addr{"shop/pay": nil}, true); err != nil {
		b.Skip("needs a network namespace in which it may change nf_tables (unshare -rn): ", err)
	}
	b.Cleanup(func() { _, _, _ = new(kernelNode).cleanEgressSets() })
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprint(n, " addresses"), func(b *testing.B) {
			var took []time.Duration
			addr := netip.MustParseAddr("192.0.0.1")
			for b.Loop() {
				var list []dnspolicy.Element
				for range n {
					list = append(list, dnspolicy.Element{Policy: "shop/pay", Addr: addr, Timeout: time.Minute})
					if addr = addr.Next(); addr.As4()[2] == 8 {
						addr = netip.MustParseAddr("192.0.0.1")
					}
				}
				began := time.Now()
				if err := e.Add(list); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			for name, p := range map[string]float64{"p50": 0.5, "p99": 0.99, "p999": 0.999} {
				b.ReportMetric(float64(took[int(p*float64(len(took)-1))].Nanoseconds())/1000, name+"-µs")
			}
		})
	}
}
