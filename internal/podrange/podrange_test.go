package podrange_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/podrange"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, text := range list {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// TestClient: pods and IPv4 addresses are clients of their own, other IPv6 addresses share one
// client for each /64.
func TestClient(t *testing.T) {
	r := new(podrange.Ranges)
	r.SetPrefixes(1, prefixes("10.244.1.0/24", "2001:db8:1::7/64"))
	r.SetPrefixes(2, prefixes("2001:db8:2:0:1::/80"))
	r.SetPod(netip.MustParseAddr("2001:db8:3::5"), true, false)
	for _, c := range []struct{ name, addr, known, unknown string }{
		{"IPv4", "192.0.2.1", "192.0.2.1", "192.0.2.1"},
		{"IPv4 as IPv6", "::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1"},
		{"in a range", "2001:db8:1::9", "2001:db8:1::9", "2001:db8:1::"},
		{"in a range of another source", "2001:db8:2:0:1:2:3:4", "2001:db8:2:0:1:2:3:4", "2001:db8:2::"},
		{"in the /64 of that range, but not in it", "2001:db8:2:0:2::4", "2001:db8:2::", "2001:db8:2::"},
		{"a pod", "2001:db8:3::5", "2001:db8:3::5", "2001:db8:3::"},
		{"in the /64 of a pod", "2001:db8:3::6", "2001:db8:3::", "2001:db8:3::"},
		{"elsewhere", "2001:db8:4:5:6:7:8:9", "2001:db8:4:5::", "2001:db8:4:5::"},
		{"with a zone", "2001:db8:4:5:6:7:8:9%eth0", "2001:db8:4:5::", "2001:db8:4:5::"},
		{"loopback", "::1", "::1", "::1"},
		{"link-local", "fe80::1:2%eth0", "fe80::1:2", "fe80::1:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := netip.MustParseAddr(c.addr)
			if got := r.Client(addr).String(); got != c.known {
				t.Errorf("%s, want %s", got, c.known)
			}
			for _, none := range []*podrange.Ranges{nil, new(podrange.Ranges)} {
				if got := none.Client(addr).String(); got != c.unknown {
					t.Errorf("%s without pods, want %s", got, c.unknown)
				}
			}
		})
	}
	for addr, want := range map[string]bool{"10.244.1.9": true, "::ffff:10.244.1.9": true, "10.244.2.9": false, "2001:db8:1::9": true, "2001:db8:3::5": true, "2001:db8:3::6": false} {
		if got := r.Has(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is a pod's: %v", addr, got)
		}
	}
	if got := r.Client(netip.Addr{}); got.IsValid() {
		t.Errorf("the client of no address is %s", got)
	}
}

// TestChanges: ranges and pods that are gone are grouped again, and each source has its own
// ranges.
func TestChanges(t *testing.T) {
	r := new(podrange.Ranges)
	addr := netip.MustParseAddr("2001:db8::1")
	check := func(step string, own bool) {
		t.Helper()
		if got := r.Client(addr); (got == addr) != own {
			t.Errorf("%s: %s", step, got)
		}
	}
	check("at first", false)
	r.SetPod(addr, false, false)
	check("after a pod is gone that was never there", false)
	r.SetPod(addr, true, false)
	r.SetPod(addr, true, false)
	check("pod", true)
	r.SetPrefixes(1, prefixes("2001:db8::/64"))
	r.SetPrefixes(2, prefixes("2001:db8::/64"))
	r.SetPod(addr, false, false)
	check("range", true)
	r.SetPrefixes(1, nil)
	check("range of the second source", true)
	r.SetPrefixes(2, prefixes("2001:db8:0:1::/64"))
	check("after all", false)
}

// TestIPv4Only: an address is of a pod without an IPv6 address as long as its pod is known and has none. The mark moves with each
// change of that, and with no other.
func TestIPv4Only(t *testing.T) {
	const bits = 4
	r := &podrange.Ranges{Epochs: epoch.New(make([]atomic.Uint64, epoch.Words(bits)), 1, bits)}
	addr := netip.MustParseAddr("10.0.0.1")
	for _, c := range []struct {
		name                        string
		pod, ipv4Only, want, change bool
	}{
		{"no pod", false, true, false, false},
		{"a pod with both", true, false, false, false},
		{"a pod without IPv6", true, true, true, true},
		{"the same", true, true, true, false},
		{"it has got an address", true, false, false, true},
		{"another pod", true, true, true, true},
		{"it ends", false, false, false, true},
	} {
		mark, any := r.Mark(), r.Epochs.Any()
		r.SetPod(addr, c.pod, c.ipv4Only)
		if moved := r.Mark() != mark; moved != c.change || moved != (r.Epochs.Any() != any) {
			t.Errorf("%s: the mark has moved: %t", c.name, moved)
		}
		for _, text := range []string{"10.0.0.1", "::ffff:10.0.0.1"} {
			if got := r.IPv4Only(netip.MustParseAddr(text)); got != c.want {
				t.Errorf("%s: %s is %t", c.name, text, got)
			}
		}
	}
	for _, none := range []*podrange.Ranges{nil, new(podrange.Ranges)} {
		if none.IPv4Only(addr) || none.Mark() != (epoch.Mark{}) {
			t.Error("no pods are known, but one without IPv6 is")
		}
	}
}

// TestConcurrent: readers see a pod that stays, whatever else changes.
func TestConcurrent(t *testing.T) {
	r := new(podrange.Ranges)
	stays, comes := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	r.SetPod(stays, true, false)
	var wg sync.WaitGroup
	for source := range 2 {
		wg.Go(func() {
			for i := range 500 {
				r.SetPod(comes, i%2 == 0, i%4 == 0)
				r.SetPrefixes(source, prefixes("2001:db8:1::/64")[:i%2])
			}
		})
		wg.Go(func() {
			for range 2000 {
				if got := r.Client(stays); got != stays {
					t.Errorf("%s is the client of %s", got, stays)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestClientAllocPin: the key costs no allocation.
func TestClientAllocPin(t *testing.T) {
	r := new(podrange.Ranges)
	r.SetPrefixes(1, prefixes("2001:db8:1::/64"))
	r.SetPod(netip.MustParseAddr("2001:db8:3::5"), true, true)
	for _, text := range []string{"192.0.2.1", "2001:db8:1::9", "2001:db8:3::5", "2001:db8:4::1"} {
		addr := netip.MustParseAddr(text)
		if n := testing.AllocsPerRun(100, func() { r.Client(addr); r.IPv4Only(addr) }); n != 0 {
			t.Errorf("%v allocations for %s", n, text)
		}
	}
}
