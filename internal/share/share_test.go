// These tests use chains and clients, which are not exported.

package share

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// TestShares: clients that take what they can, in turns, leave one part of n+1.
func TestShares(t *testing.T) {
	tests := []struct {
		places, clients int
		each, free      int
	}{
		{places: 1, clients: 1, each: 1, free: 0},
		{places: 2, clients: 1, each: 1, free: 1},
		{places: 10, clients: 1, each: 5, free: 5},
		{places: 4096, clients: 1, each: 2048, free: 2048},
		{places: 4096, clients: 3, each: 1024, free: 1024},
		{places: 2048, clients: 1, each: 1024, free: 1024},
		{places: 2048, clients: 10, each: 187, free: 178},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.clients, tt.places), func(t *testing.T) {
			p := NewLimiter(tt.places)
			held := make([]int, tt.clients)
			for more := true; more; {
				more = false
				for i := range held {
					if _, v := p.Acquire(addr(i)); v == Available {
						held[i]++
						more = true
					}
				}
			}
			for i, n := range held {
				if n > tt.each || n < tt.each-1 {
					t.Errorf("client %d holds %d places, want %d", i, n, tt.each)
				}
			}
			if free := tt.places - p.InUse(); free < tt.free || free > tt.free+tt.clients {
				t.Errorf("%d places are free, want %d", free, tt.free)
			}
			if _, v := p.Acquire(addr(tt.clients)); (v == Available) != (tt.free > 0) {
				t.Errorf("one who comes last: verdict %d with %d free places", v, tt.free)
			}
		})
	}
}

// TestVerdicts: who is refused knows whether that is for its own sake.
func TestVerdicts(t *testing.T) {
	p := NewLimiter(2)
	one, _ := p.Acquire(addr(1))
	if _, v := p.Acquire(addr(1)); v != OverShare {
		t.Errorf("the second place of the only client: verdict %d, want Excess", v)
	}
	if v := p.AcquireShared(); v != Available {
		t.Errorf("the last place: verdict %d, want Fits", v)
	}
	if _, v := p.Acquire(addr(2)); v != Full {
		t.Errorf("without a place: verdict %d, want Full", v)
	}
	p.Release(one)
	p.Release(NoClient)
	if n := p.InUse(); n != 0 {
		t.Errorf("%d places are taken by nobody", n)
	}
}

// TestAddresses: what is one client and what is another.
func TestAddresses(t *testing.T) {
	same := [][2]string{{"192.0.2.1", "::ffff:192.0.2.1"}, {"fe80::1", "fe80::1%eth0"}}
	other := [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}}
	take := func(pair [2]string) (a, b Client) {
		p := NewLimiter(8)
		a, _ = p.Acquire(netip.MustParseAddr(pair[0]))
		b, _ = p.Acquire(netip.MustParseAddr(pair[1]))
		return a, b
	}
	for _, pair := range same {
		if a, b := take(pair); a != b {
			t.Errorf("%v are two clients", pair)
		}
	}
	for _, pair := range other {
		if a, b := take(pair); a == b {
			t.Errorf("%v are one client", pair)
		}
	}
}

// TestPlacesAgainstModel takes and gives at random, and holds what is counted against a
// plain map. A number is one client's only, and the table never grows beyond the places.
func TestPlacesAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const places = 50
	p, model := NewLimiter(places), map[Client]netip.Addr{}
	var all []Client
	held := map[netip.Addr]int{}
	for step := range 50_000 {
		if len(all) > 0 && random.IntN(100) < 48 {
			i := random.IntN(len(all))
			c := all[i]
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
			if held[model[c]]--; held[model[c]] == 0 {
				delete(held, model[c])
				delete(model, c)
			}
			p.Release(c)
			continue
		}
		a, free := addr(random.IntN(200)), places-len(all)
		want := Available
		switch {
		case free == 0:
			want = Full
		case held[a] >= free:
			want = OverShare
		}
		c, v := p.Acquire(a)
		if v != want {
			t.Fatalf("step %d: verdict %d, want %d, with %d held and %d free", step, v, want, held[a], free)
		}
		if v != Available {
			continue
		}
		if other, ok := model[c]; ok && other != a {
			t.Fatalf("step %d: number %d is %v's and %v's", step, c, other, a)
		}
		model[c] = a
		held[a]++
		all = append(all, c)
	}
	if n := len(p.clients); n > places+2 {
		t.Errorf("the table has grown to %d clients", n)
	}
	for _, c := range all {
		p.Release(c)
	}
	if d := cmp.Diff(make([]Client, len(p.chains)), p.chains); d != "" || p.InUse() != 0 {
		t.Errorf("%d places are taken in the end, chains (-want +got):\n%s", p.InUse(), d)
	}
}

// TestAllocations: a place costs no memory once as many clients have been there.
func TestAllocations(t *testing.T) {
	p, d := NewLimiter(64), NewFairShare(64)
	n := testing.AllocsPerRun(100, func() {
		a, _ := p.Acquire(addr(1))
		b, _ := p.Acquire(addr(2))
		d.Add(a)
		d.Add(b)
		d.Remove(a)
		d.Remove(b)
		p.Release(a)
		p.Release(b)
	})
	if n != 0 {
		t.Errorf("%v allocations for two places", n)
	}
}

func BenchmarkPlace(b *testing.B) {
	p, a := NewLimiter(4096), addr(1)
	b.ReportAllocs()
	for b.Loop() {
		c, _ := p.Acquire(a)
		p.Release(c)
	}
}

// BenchmarkChannel is what places cost that are divided among nobody.
func BenchmarkChannel(b *testing.B) {
	p := make(chan struct{}, 4096)
	for b.Loop() {
		select {
		case p <- struct{}{}:
		default:
		}
		<-p
	}
}
