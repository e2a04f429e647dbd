// Internal: tests refSet.

package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/soak"
)

// placed are values of which several compare equal.
type placed struct{ place, version int }

func byPlace(a, b *placed) int { return a.place - b.place }

// After any changes a refSet equals a sorted list: each place once, with the latest value,
// which alone can be removed.
func TestRefSetMatchesModel(t *testing.T) {
	for _, most := range []int{2, 5, blockSize, 20 * blockSize} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(most), 1))
			m, at := map[addrKey]refSet[*placed]{}, addrKey{1}
			var want []*placed
			for i := range 6 * most {
				e := &placed{place: rng.IntN(most), version: i}
				n, found := slices.BinarySearchFunc(want, e, byPlace)
				// There are phases in which the list grows, and ones in which it shrinks.
				switch grows := i / most % 2 * 8; {
				case rng.IntN(10) < 9-grows:
					addRef(m, at, e, byPlace)
					if found {
						want[n] = e
					} else {
						want = slices.Insert(want, n, e)
					}
				case found:
					dropRef(m, at, e, byPlace) // which is another one
					dropRef(m, at, want[n], byPlace)
					want = slices.Delete(want, n, n+1)
				default:
					dropRef(m, at, e, byPlace)
				}
				if most <= blockSize || i%97 == 0 {
					checkRefs(t, m, at, want)
				}
			}
			checkRefs(t, m, at, want)
		})
	}
}

func checkRefs(t *testing.T, m map[addrKey]refSet[*placed], at addrKey, want []*placed) {
	t.Helper()
	r, ok := m[at]
	if ok != (len(want) > 0) {
		t.Fatalf("there: %v, want %d", ok, len(want))
	}
	if !ok {
		return
	}
	if got := slices.Collect(r.each); !slices.Equal(got, want) {
		t.Fatalf("got %d, want %d, in order", len(got), len(want))
	}
	if (r.many == nil) != (len(want) == 1) || (r.one != nil) != (len(want) == 1) {
		t.Fatalf("%d are kept as one: %v", len(want), r.many == nil)
	}
	for i := 0; i < len(want); i += 1 + len(want)/7 {
		if got := slices.Collect(r.after(want[i], byPlace)); !slices.Equal(got, want[i+1:]) {
			t.Fatalf("got %d behind the one at %d, want %d", len(got), i, len(want)-i-1)
		}
	}
	if r.many == nil {
		return
	}
	for _, b := range *r.many {
		if len(b) == 0 || len(b) > blockSize {
			t.Fatalf("a block of %d", len(b))
		}
	}
}

// The reverse names of an address match the current slices, after any history.
func TestAddrOwnersMatchSlices(t *testing.T) {
	const packedAddr = "\x0a\x01\x02\x03"
	for seed := range soak.Choose[uint64](6, 30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := newWorstCase()
		z := w.zone(t)
		names := 5 + rng.IntN(60)
		current, kinds := map[string]*slice{}, map[string]serviceKind{}
		for i := range 800 {
			name := fmt.Sprint("s", rng.IntN(names))
			ns := []string{"a", "b"}[rng.IntN(2)]
			key, _ := serviceKey(name, ns)
			id := fmt.Sprintf("%s/x%d", ns, rng.IntN(2*names))
			switch rng.IntN(8) {
			case 0:
				kinds[key] = serviceKind(1 + rng.IntN(3))
				w.change(func(x *index) bool { return x.putService(key, service{kind: kinds[key], selects: true}) })
			case 1:
				delete(kinds, key)
				w.change(func(x *index) bool { return x.dropService(key) })
			case 2:
				delete(current, id)
				w.change(func(x *index) bool { return x.dropSlice(id) })
			default:
				sl := &slice{name: id, key: key, size: 4, version: uint64(i)}
				for _, host := range []string{"", "g", "h"} {
					if rng.IntN(2) == 0 {
						sl.addrs += packedAddr
						sl.hosts = append(sl.hosts, host)
					}
				}
				sl.addrs, sl.hosts = sl.addrs+"\x0a\x01\x02\x04", append(sl.hosts, "")
				current[id] = sl
				w.change(func(x *index) bool { return x.putSlice(sl) })
			}
			if i%20 == 0 {
				checkOwners(t, z, packedAddr, current, kinds)
			}
		}
	}
}

func checkOwners(t *testing.T, z *Zone, addr string, current map[string]*slice, kinds map[string]serviceKind) {
	t.Helper()
	want := map[string]bool{}
	for _, s := range current {
		if k := kinds[s.key]; k != clusterIP && k != headless {
			continue
		}
		for i := range s.len() {
			if s.addr(i) == addr {
				want[wire.Name(joinName(nil, s.hostname(i), s.key, z.primary.svc)).String()] = true
			}
		}
	}
	m, _, _ := ask(t, z, "3.2.1.10.in-addr.arpa.", dns.TypePTR)
	got := map[string]bool{}
	for _, rr := range m.Answer {
		name := rr.(*dns.PTR).Ptr
		if got[name] {
			t.Errorf("%s is there twice", name)
		}
		got[name] = true
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("owners -want +got:\n%s", d)
	}
	if (m.Rcode == dns.RcodeNameError) != (len(want) == 0) {
		t.Fatalf("%s with %d names", dns.RcodeToString[m.Rcode], len(want))
	}
}

// The cost of a change depends neither on how many others share the address nor on the
// service's other endpoints.
func TestChangesCostWhatChanges(t *testing.T) {
	race.SkipSequential(t)
	a := netip.MustParseAddr("10.1.2.3")
	crowd := func(n int) worstCase {
		w := newWorstCase()
		w.pod("10.1.2.3", n)
		return w
	}
	for _, c := range []struct {
		name   string
		make   func(n int) worstCase
		change func(w worstCase, i int)
	}{
		{"one address of all", crowd, func(w worstCase, i int) {
			w.slice("\x01x\x06tenant", "x", a, 1+i%2, nil)
		}},
		{"a slice that comes and goes", crowd, func(w worstCase, i int) {
			w.slice("\x01x\x06tenant", "x", a, 100, nil)
			w.change(func(x *index) bool { return x.dropSlice("tenant/x") })
		}},
		{"services at one external address", func(n int) worstCase {
			w := newWorstCase()
			for i := range n {
				w.service(fmt.Sprint("s", i), service{kind: clusterIP, external4: packed(a, 1)})
			}
			return w
		}, func(w worstCase, i int) {
			w.service("s0", service{kind: clusterIP, external4: packed(a, 1+i%2)})
		}},
		{"endpoints of one service", func(n int) worstCase {
			w := newWorstCase()
			w.spread("big", 10, n/10, nil)
			return w
		}, func(w worstCase, i int) {
			w.slice("\x03big\x06tenant", "big-x", a, 1+i%2, nil)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cost := func(n int) (bytes uint64) {
				w := c.make(n)
				const rounds = 200
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for i := range rounds {
					c.change(w, i)
				}
				runtime.ReadMemStats(&after)
				return (after.TotalAlloc - before.TotalAlloc) / rounds
			}
			few, many := cost(5000), cost(20000)
			if many > 2*few+512 {
				t.Errorf("with four times as many a change takes %d bytes, and not %d", many, few)
			}
		})
	}
	for _, n := range []int{5000, 20000} {
		steps := 0
		compare := func(a, b string) int { steps++; return strings.Compare(a, b) }
		m, at := map[addrKey]refSet[string]{}, addrKey{}
		for i := range n {
			addRef(m, at, fmt.Sprint(i*7919%n), compare)
		}
		steps = 0
		dropRef(m, at, "77", compare)
		addRef(m, at, "77", compare)
		if steps > 50 {
			t.Errorf("%d comparisons for one of %d", steps, n)
		}
	}
}

// BenchmarkChange measures the change of a slice of 100 endpoints whose addresses are
// shared, all of it under the view's lock.
func BenchmarkChange(b *testing.B) {
	a := netip.MustParseAddr("10.1.2.3")
	for _, n := range []int{0, 2000, 20000} {
		for _, all := range []int{1, 100} {
			b.Run(fmt.Sprintf("%d services/%d addresses", n, all), func(b *testing.B) {
				w := newWorstCase()
				for i := range n {
					name := fmt.Sprintf("s%05d", i)
					w.slice(w.service(name, service{kind: headless}), name, a, all, nil)
				}
				key := w.service("x", service{kind: headless})
				b.ReportAllocs()
				cpu := cpuTime(b)
				for i := 0; b.Loop(); i++ {
					w.slice(key, "x", a, 99+i%2, nil)
				}
				b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
