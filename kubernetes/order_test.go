// Internal: compares with a model of the records.

package kubernetes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/soak"
)

// Every answer is a permutation of the endpoints with the nearest first, and within a
// distance every order occurs: for names of services, ports, hosts and zones.
func TestOrderIsRandomWithinDistance(t *testing.T) {
	cfg := testConfig(t)
	cfg.Zonal = true
	v := openPlaced(t, cfg, "")
	var slice1, slice2, slice6 []discoveryv1.Endpoint
	want := map[string]rank{}
	for i := range 12 {
		words, r := "n9 west", otherRank
		switch i % 4 {
		case 1:
			words, r = "n0 east", nodeRank
		case 2:
			words, r = "n1 east", zoneRank
		}
		addr4, addr6 := fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("fd00::%x", i+1)
		want[addr4], want[addr6] = r, r
		slice1 = append(slice1, endpointAt(addr4+" "+words+" host=h"))
		if i%3 == 0 { // a duplicate that seems to be far
			slice2 = append(slice2, endpointAt(addr4+" n9 west host=h"))
		}
		slice6 = append(slice6, endpointAt(addr6+" "+words+" host=h"))
	}
	headlessOf(v, "", slice2, slice1, slice6)
	z := NewZone(v, cfg)
	const bare = "db.default.svc.cluster.local"
	for name, n := range map[string]int{
		bare: 12, "_http._tcp." + bare: 12, "h." + bare: 12,
		"south.prefer._zone." + bare: 12, "east.pin._zone." + bare: 6,
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			t.Run(name+" "+dns.TypeToString[qtype], func(t *testing.T) { checkOrder(t, z, name, qtype, n, want) })
		}
	}
}

func checkOrder(t *testing.T, z *Zone, name string, qtype uint16, n int, ranks map[string]rank) {
	t.Helper()
	// One of the largest set of six misses one of its places by chance once in 10^30.
	const rounds = 400
	reached := map[string]map[int]bool{}
	for range rounds {
		list := addresses(t, z, name, qtype)
		last := nodeRank
		for i, addr := range list {
			if r := ranks[addr]; r > last {
				t.Fatalf("%s is behind farther ones: %v", addr, list)
			}
			last = ranks[addr]
			if reached[addr] == nil {
				reached[addr] = map[int]bool{}
			}
			reached[addr][i] = true
		}
		if slices.Sort(list); len(slices.Compact(list)) != n {
			t.Fatalf("got %v, want %d different ones", list, n)
		}
	}
	if len(reached) != n {
		t.Errorf("%d addresses, want %d", len(reached), n)
	}
	size := map[rank]int{}
	for addr := range reached {
		size[ranks[addr]]++
	}
	for addr, places := range reached {
		if len(places) != size[ranks[addr]] {
			t.Errorf("%s comes to stand in %d places of %d", addr, len(places), size[ranks[addr]])
		}
	}
}

// For random slices, names below a service have the addresses of a simple model: each once,
// by the nearest endpoint that the name selects.
func TestEndpointAddrsMatchModel(t *testing.T) {
	const bare = "db.default.svc.cluster.local"
	hosts, zones, nodes := []string{"", " host=h", " host=g"}, []string{"east", "west", "-"}, []string{"n0", "n1"}
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		cfg := testConfig(t)
		cfg.Zonal = true
		v := emptyView()
		v.converter = newConverter(cfg, testNode)
		z := NewZone(v, cfg)
		want := map[string]map[string]rank{"_http._tcp.": {}, "h.": {}, "east.pin._zone.": {}, "west.prefer._zone.": {}}
		var lists [][]discoveryv1.Endpoint
		all := map[string]rank{}
		for range 1 + rng.IntN(3) {
			var list []discoveryv1.Endpoint
			listed := map[string]bool{} // an endpoint that is twice in one slice is the nearer one
			for range rng.IntN(5) {
				addr, host := fmt.Sprintf("10.0.0.%d", 1+rng.IntN(4)), hosts[rng.IntN(3)]
				zone, node := zones[rng.IntN(3)], nodes[rng.IntN(2)]
				if listed[addr+host] {
					continue
				}
				listed[addr+host] = true
				ep := endpointAt(addr + " " + node + " " + zone + host)
				list = append(list, ep)
				r := v.converter.localityOf(&ep).rank()
				note := func(m map[string]rank) { m[addr] = max(m[addr], r) }
				note(want["_http._tcp."])
				if host == hosts[1] {
					note(want["h."])
				}
				switch note(all); zone {
				case "east":
					note(want["east.pin._zone."])
				case "west":
					note(want["west.prefer._zone."])
				}
			}
			lists = append(lists, list)
		}
		if len(want["west.prefer._zone."]) == 0 {
			want["west.prefer._zone."] = all
		}
		headlessOf(v, "", lists...)
		for name, ranks := range want {
			list := addresses(t, z, name+bare, dns.TypeA)
			if !slices.IsSortedFunc(list, func(a, b string) int { return int(ranks[b]) - int(ranks[a]) }) {
				t.Errorf("seed %d: %s gives %v, of the ranks %v", seed, name, list, ranks)
			}
			if slices.Sort(list); !slices.Equal(list, slices.Sorted(maps.Keys(ranks))) {
				t.Errorf("seed %d: %s gives %v, want %v", seed, name, list, ranks)
			}
		}
	}
}

// With `topology off`, answers keep the order of the addresses.
func TestTopologyOffKeepsOrder(t *testing.T) {
	cfg := testConfig(t)
	cfg.Topology = config.TopologyOff
	v := openPlaced(t, cfg, "")
	var list []discoveryv1.Endpoint
	for i := range 9 {
		list = append(list, endpointAt(fmt.Sprintf("10.0.0.%d n%d east host=h", i+1, 8-i)))
	}
	headlessOf(v, "", list)
	z := NewZone(v, cfg)
	for _, name := range []string{"", "_http._tcp.", "h."} {
		first := addresses(t, z, name+"db.default.svc.cluster.local", dns.TypeA)
		if len(first) != 9 || !slices.IsSorted(first) {
			t.Errorf("%q has %v", name, first)
		}
		for range 50 {
			if next := addresses(t, z, name+"db.default.svc.cluster.local", dns.TypeA); !slices.Equal(first, next) {
				t.Fatalf("%q has %v, then %v", name, first, next)
			}
		}
	}
}

// If a service has more endpoints than fit into an answer, every one is returned at some
// time, and neighbors in the list are seldom neighbors in the answer.
func TestMoreThanFit(t *testing.T) {
	cfg := testConfig(t)
	v := openPlaced(t, cfg, "")
	const n = 9000
	var list []discoveryv1.Endpoint
	at := map[string]int{}
	for i := range n {
		list = append(list, endpointAt(fmt.Sprintf("10.0.%d.%d n9 west", i/250, i%250)))
		at[list[i].Addresses[0]] = i
	}
	headlessOf(v, "", slices.Collect(slices.Chunk(list, maxSliceEndpoints))...)
	z := NewZone(v, cfg)
	seen := map[string]bool{}
	for range soak.Choose(60, 200) { // each gives more than four of nine: the worst one misses is 0.6^60
		got := addresses(t, z, "db.default.svc.cluster.local", dns.TypeA)
		if len(got) < n*4/10 {
			t.Fatalf("an answer of %d addresses", len(got))
		}
		neighbors := 0
		for i, a := range got {
			seen[a] = true
			if i > 0 && a == list[(at[got[i-1]]+1)%n].Addresses[0] {
				neighbors++
			}
		}
		if neighbors > len(got)/20 { // in random order there is one
			t.Fatalf("an answer of %d addresses with %d neighbors", len(got), neighbors)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d were seen", len(seen), n)
	}
}
