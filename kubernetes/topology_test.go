// Internal: compares with a model of the records.

package kubernetes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodens-dns/nodens/internal/config"
)

// testNode is the location of the agent in these tests.
var testNode = Options{
	Now: testClock, ServerAddrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")},
	Node: "n0", Zone: "east",
}

// openPlaced is openText for an agent with that location.
func openPlaced(t testing.TB, cfg *config.Kubernetes, yaml string) *View {
	t.Helper()
	return openWith(t, cfg, testNode, yaml)
}

// endpointAt parses an endpoint: "10.0.0.1 n0 east host=h nodes=n0,n1 zones=east". A dash
// is an unknown node or zone.
func endpointAt(text string) discoveryv1.Endpoint {
	words := strings.Fields(text)
	ep := discoveryv1.Endpoint{Addresses: words[:1]}
	if words[1] != "-" {
		ep.NodeName = &words[1]
	}
	if words[2] != "-" {
		ep.Zone = &words[2]
	}
	for _, w := range words[3:] {
		what, list, _ := strings.Cut(w, "=")
		if what == "host" {
			ep.Hostname = &list
			continue
		}
		if ep.Hints == nil {
			ep.Hints = &discoveryv1.EndpointHints{}
		}
		for name := range strings.SplitSeq(list, ",") {
			if what == "nodes" {
				ep.Hints.ForNodes = append(ep.Hints.ForNodes, discoveryv1.ForNode{Name: name})
			} else {
				ep.Hints.ForZones = append(ep.Hints.ForZones, discoveryv1.ForZone{Name: name})
			}
		}
	}
	return ep
}

// headlessOf adds the headless service db to v, with a slice for each list of endpoints.
func headlessOf(v *View, distribution string, lists ...[]discoveryv1.Endpoint) {
	svc := makeService("default", "db", "None")
	if distribution != "" {
		svc.Spec.TrafficDistribution = &distribution
	}
	handlerFixture{v, services}.put(svc)
	for i, list := range lists {
		es := makeSlice("default", "db", fmt.Sprintf("db-%d", i))
		es.Endpoints = list
		if len(list) > 0 && strings.Contains(list[0].Addresses[0], ":") {
			es.AddressType = discoveryv1.AddressTypeIPv6
		}
		handlerFixture{v, endpointSlices}.put(es)
	}
}

// addresses returns the addresses of an answer in order.
func addresses(t testing.TB, z *Zone, name string, qtype uint16) (list []string) {
	t.Helper()
	m, _, _ := ask(t, z, name, qtype)
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			list = append(list, rr.A.String())
		case *dns.AAAA:
			list = append(list, rr.AAAA.String())
		}
	}
	return list
}

// addressGroups returns the addresses of an answer, sorted within each distance; sizes are
// the numbers of addresses by distance.
func addressGroups(t *testing.T, z *Zone, name string, sizes ...int) string {
	t.Helper()
	list := addresses(t, z, name, dns.TypeA)
	var b strings.Builder
	for _, n := range sizes {
		n = min(n, len(list))
		slices.Sort(list[:n])
		fmt.Fprint(&b, list[:n])
		list = list[n:]
	}
	if len(list) > 0 {
		fmt.Fprint(&b, " and ", list)
	}
	return b.String()
}

func TestTopology(t *testing.T) {
	const bare = "db.default.svc.cluster.local"
	spread := []string{"10.0.0.1 n9 west", "10.0.0.2 n1 east", "10.0.0.3 n0 east", "10.0.0.4 - -", "10.0.0.5 n1 east"}
	with := func(hints ...string) (list []string) {
		for i, s := range spread {
			list = append(list, s+" "+hints[i])
		}
		return list
	}
	unknown := Options{Now: testClock}
	tests := map[string]struct {
		mode  config.Topology
		opts  *Options // nil is here
		wants string   // trafficDistribution
		eps   []string
		sizes []int
		want  string
	}{
		"ordered by default": {eps: spread, sizes: []int{1, 2, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5][10.0.0.1 10.0.0.4]"},
		"order":              {mode: config.TopologyOrder, eps: spread, sizes: []int{1, 2, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5][10.0.0.1 10.0.0.4]"},
		"order narrows nothing": {
			mode: config.TopologyOrder, wants: "PreferSameNode",
			eps:   with("nodes=n0 zones=east", "nodes=n0 zones=east", "nodes=n0 zones=east", "nodes=n0 zones=east", "nodes=n0 zones=east"),
			sizes: []int{1, 2, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5][10.0.0.1 10.0.0.4]",
		},
		"off": {
			mode: config.TopologyOff, wants: "PreferSameNode", eps: with("nodes=n0", "nodes=n0", "nodes=n0", "nodes=n0", "nodes=n0"),
			want: " and [10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5]",
		},
		"same zone":  {wants: "PreferSameZone", eps: spread, sizes: []int{1, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5]"},
		"close":      {wants: "PreferClose", eps: spread, sizes: []int{1, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5]"},
		"same node":  {wants: "PreferSameNode", eps: spread, sizes: []int{1}, want: "[10.0.0.3]"},
		"new wishes": {wants: "PreferSunny", eps: spread, sizes: []int{1, 2, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5][10.0.0.1 10.0.0.4]"},
		"same node, only the zone is there": {
			wants: "PreferSameNode", eps: []string{"10.0.0.1 n9 west", "10.0.0.2 n1 east"}, sizes: []int{1}, want: "[10.0.0.2]",
		},
		"same node, all are far": {
			wants: "PreferSameNode", eps: []string{"10.0.0.1 n9 west", "10.0.0.2 n8 north"}, sizes: []int{2}, want: "[10.0.0.1 10.0.0.2]",
		},
		"same zone, all are far": {
			wants: "PreferSameZone", eps: []string{"10.0.0.1 n9 west", "10.0.0.2 n8 -"}, sizes: []int{2}, want: "[10.0.0.1 10.0.0.2]",
		},
		"an endpoint of this node without a zone is in its zone": {
			wants: "PreferSameZone", eps: []string{"10.0.0.1 n9 west", "10.0.0.2 n0 -"}, sizes: []int{1}, want: "[10.0.0.2]",
		},
		"zone hints": {
			eps: with("zones=east", "zones=west", "zones=west,east", "zones=west", "zones=west"), sizes: []int{1, 1}, want: "[10.0.0.3][10.0.0.1]",
		},
		"zone hints, one is missing": {
			eps: append(with("zones=east", "zones=east", "zones=east", "zones=east", "zones=east"), "10.0.0.6 n1 east"), sizes: []int{1, 3, 2},
			want: "[10.0.0.3][10.0.0.2 10.0.0.5 10.0.0.6][10.0.0.1 10.0.0.4]",
		},
		"zone hints, none is for here": {
			eps: with("zones=west", "zones=west", "zones=west", "zones=west", "zones=west"), sizes: []int{1, 2, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5][10.0.0.1 10.0.0.4]",
		},
		"node hints go before zone hints": {
			eps:   with("zones=east nodes=n0", "zones=east nodes=n1", "zones=east nodes=n1", "zones=east nodes=n1", "zones=east nodes=n1"),
			sizes: []int{1}, want: "[10.0.0.1]",
		},
		"node hints for others, zone hints for here": {
			eps:   with("zones=west nodes=n1", "zones=east nodes=n1", "zones=west nodes=n1", "zones=west nodes=n1", "zones=west nodes=n1"),
			sizes: []int{1}, want: "[10.0.0.2]",
		},
		"what the service asks for goes before hints": {
			wants: "PreferSameZone", eps: with("zones=east", "zones=west", "zones=west", "zones=west", "zones=west"),
			sizes: []int{1, 2}, want: "[10.0.0.3][10.0.0.2 10.0.0.5]",
		},
		"unknown node and zone": {
			opts: &unknown, wants: "PreferSameNode", eps: append(with("zones=east nodes=n0", "zones=east nodes=n0", "zones=east nodes=n0", "zones=east nodes=n0", "zones=east nodes=n0"), "10.0.0.6 - -"),
			sizes: []int{6}, want: "[10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6]",
		},
		"unknown zone": {
			opts: &Options{Now: testClock, Node: "n0"}, wants: "PreferSameZone", eps: with("zones=east", "zones=east", "zones=east", "zones=east", "zones=east"),
			sizes: []int{1, 4}, want: "[10.0.0.3][10.0.0.1 10.0.0.2 10.0.0.4 10.0.0.5]",
		},
		"listed twice": {
			eps: []string{"10.0.0.1 n9 west", "10.0.0.1 n0 east", "10.0.0.2 n1 east"}, sizes: []int{1, 1}, want: "[10.0.0.1][10.0.0.2]",
		},
		"the nearest of duplicates": {
			eps: []string{"10.0.0.1 n9 west host=a", "10.0.0.1 n0 east host=b", "10.0.0.2 n1 east"}, sizes: []int{1, 1}, want: "[10.0.0.1][10.0.0.2]",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Topology = tt.mode
			opts := testNode
			if tt.opts != nil {
				opts = *tt.opts
			}
			v := openWith(t, cfg, opts, "")
			var list []discoveryv1.Endpoint
			for _, s := range tt.eps {
				list = append(list, endpointAt(s))
			}
			headlessOf(v, tt.wants, list)
			z := NewZone(v, cfg)
			if got := addressGroups(t, z, bare, tt.sizes...); got != tt.want {
				t.Errorf("one slice: got %s, want %s", got, tt.want)
			}
			if z.Ordered() != (tt.mode != config.TopologyOff) {
				t.Errorf("Ordered is %v", z.Ordered())
			}
			// So it is with the same endpoints in three slices, where some are twice.
			headlessOf(v, tt.wants, list[:1], list[1:], list[:2])
			if got := addressGroups(t, z, bare, tt.sizes...); got != tt.want {
				t.Errorf("three slices: got %s, want %s", got, tt.want)
			}
			// All other names know all of them.
			all := map[string]bool{}
			for _, s := range tt.eps {
				all[strings.Fields(s)[0]] = true
			}
			if got := addresses(t, z, "_http._tcp."+bare, dns.TypeA); len(got) != len(all) {
				t.Errorf("the port has %v", got)
			}
			m, _, _ := ask(t, z, bare, dns.TypeSRV)
			if len(m.Extra)-1 != len(tt.eps) && len(m.Extra)-1 != len(all) { // one is the OPT
				t.Errorf("SRV has\n%s", m)
			}
			for addr := range all {
				if m, _, _ := ask(t, z, arpa(addr), dns.TypePTR); len(m.Answer) == 0 {
					t.Errorf("%s has no name", addr)
				}
			}
		})
	}
}

func arpa(addr string) string {
	name, _ := dns.ReverseAddr(addr)
	return name
}

// endpointEntry is an endpoint in the model of TestHeadlessAddrsMatchModel.
type endpointEntry struct {
	addr  string
	place locality
}

// For random slices, a headless service has the addresses of a simple model.
func TestHeadlessAddrsMatchModel(t *testing.T) {
	shared := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := &service{kind: headless, distribution: trafficDistribution(rng.IntN(3))}
		narrow := rng.IntN(4) > 0
		bits := []locality{0, sameNode | sameZone, sameZone, 0, sameNode | sameZone}[rng.IntN(5):]
		hints := []locality{hasNodeHints | hintsNode, hasZoneHints | hintsZone, hasNodeHints | hasZoneHints, hasNodeHints, hasZoneHints, 0}[rng.IntN(6):]
		var list []endpointEntry
		for i := range rng.IntN(4) {
			var l endpointList
			size := []int{4, 4, 16}[rng.IntN(3)]
			for range rng.IntN(5) {
				e := endpoint{addr: strings.Repeat("x", size-1) + string(byte('a'+rng.IntN(8)))}
				e.place = bits[rng.IntN(len(bits))] | hints[rng.IntN(len(hints))]
				if rng.IntN(3) == 0 {
					e.host = "h" + fmt.Sprint(rng.IntN(2))
				}
				l = append(l, e)
			}
			sl := &slice{name: fmt.Sprint(i), size: size}
			l.pack(sl)
			s.slices = append(s.slices, sl)
			for j := range sl.len() {
				list = append(list, endpointEntry{sl.addr(j), sl.locality(j)})
			}
		}
		for _, size := range []int{4, 16} {
			got, cut := s.headlessAddrs(size, narrow)
			want, places := expectedAddrs(s, list, size, narrow)
			if diff := cmp.Diff(want, byRank(got, cut, size)); diff != "" {
				t.Fatalf("seed %d, narrow %v, nearest %d, of %v (-want +got):\n%s", seed, narrow, s.distribution, list, diff)
			}
			if cut != places {
				t.Fatalf("seed %d: cut at %v, want %v", seed, cut, places)
			}
			if len(s.slices) == 1 && got != "" && unsafe.StringData(got) == unsafe.StringData(s.slices[0].addrs) {
				shared++
			}
		}
	}
	if shared < 100 {
		t.Errorf("the bytes of the slice are shared only %d times", shared)
	}
}

// byRank splits packed by rank and sorts each part.
func byRank(packed string, cut localityBounds, size int) (out [4][]string) {
	for i := range len(packed) / size {
		r := otherRank
		switch {
		case i < int(cut.zoneStart):
			r = nodeRank
		case i < int(cut.otherStart):
			r = zoneRank
		}
		out[r] = append(out[r], packed[i*size:(i+1)*size])
	}
	for _, l := range out {
		slices.Sort(l)
	}
	return out
}

// expectedAddrs is a simple model of service.headlessAddrs.
func expectedAddrs(s *service, list []endpointEntry, size int, narrow bool) (out [4][]string, cut localityBounds) {
	list = slices.DeleteFunc(slices.Clone(list), func(e endpointEntry) bool { return len(e.addr) != size })
	some := func(p locality) bool {
		return slices.ContainsFunc(list, func(e endpointEntry) bool { return e.place&p != 0 })
	}
	every := func(p locality) bool {
		return !slices.ContainsFunc(list, func(e endpointEntry) bool { return e.place&p == 0 })
	}
	keep := locality(0)
	switch {
	case !narrow:
	case s.distribution == preferSameNode && some(sameNode):
		keep = sameNode
	case s.distribution == preferSameNode && some(sameZone), s.distribution == preferSameZone && some(sameZone):
		keep = sameZone
	case s.distribution != noPreference:
	case every(hasNodeHints) && some(hintsNode):
		keep = hintsNode
	case every(hasZoneHints) && some(hintsZone):
		keep = hintsZone
	}
	best := map[string]rank{}
	for _, e := range list {
		if keep == 0 || e.place&keep != 0 {
			best[e.addr] = max(best[e.addr], e.place.rank())
		}
	}
	for _, addr := range slices.Sorted(maps.Keys(best)) {
		out[best[addr]] = append(out[best[addr]], addr)
	}
	cut.zoneStart = uint16(len(out[nodeRank]))
	cut.otherStart = cut.zoneStart + uint16(len(out[zoneRank]))
	return out, cut
}

// Answers may be rotated only if the order of all their addresses is random.
func TestRotatable(t *testing.T) {
	const bare = "db.default.svc.cluster.local"
	for name, c := range map[string]struct {
		mode config.Topology
		eps  []string
		want bool
	}{
		"all far":           {config.TopologyOrder, []string{"10.0.0.1 n9 west", "10.0.0.2 n8 west", "10.0.0.4 - -"}, true},
		"all near":          {config.TopologyOrder, []string{"10.0.0.1 n0 east", "10.0.0.2 n0 east"}, true},
		"all in the zone":   {config.TopologyOrder, []string{"10.0.0.1 n1 east", "10.0.0.2 n2 east"}, true},
		"of two distances":  {config.TopologyOrder, []string{"10.0.0.1 n1 east", "10.0.0.2 n9 west"}, false},
		"one on this node":  {config.TopologyOrder, []string{"10.0.0.1 n0 east", "10.0.0.2 n9 west"}, false},
		"without any order": {config.TopologyOff, []string{"10.0.0.1 n0 east", "10.0.0.2 n9 west"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Topology = c.mode
			v := openPlaced(t, cfg, "")
			var list []discoveryv1.Endpoint
			for _, text := range c.eps {
				list = append(list, endpointAt(text))
			}
			headlessOf(v, "", list)
			z := NewZone(v, cfg)
			q := parsed(t, bare, dns.TypeA)
			if got := z.Rotatable(&q, nil); got != c.want {
				t.Errorf("turns: %v, want %v", got, c.want)
			}
			// What turns has each address in front at times, if it is put in order at all.
			first := map[string]bool{}
			for range 200 {
				first[addresses(t, z, bare, dns.TypeA)[0]] = true
			}
			if c.mode == config.TopologyOrder && (len(first) == len(list)) != c.want {
				t.Errorf("%d of %d addresses were in front", len(first), len(list))
			}
			for _, qtype := range []uint16{dns.TypeSRV, dns.TypeTXT} {
				q := parsed(t, bare, qtype)
				if z.Rotatable(&q, nil) {
					t.Errorf("records of type %s turn", dns.TypeToString[qtype])
				}
			}
			q = parsed(t, "_tcp.db.default.svc.cluster.local", dns.TypeA)
			if z.Rotatable(&q, nil) {
				t.Error("what is no set of addresses turns")
			}
		})
	}
}

// Answers and serial follow a change of an endpoint's location.
func TestTopologyChanges(t *testing.T) {
	const bare = "db.default.svc.cluster.local"
	cfg := testConfig(t)
	cfg.Zonal = true
	v := openPlaced(t, cfg, "")
	z := NewZone(v, cfg)
	steps := []struct {
		what, wants string
		eps         []string
		want        string
		visible     bool
	}{
		{"the start", "", []string{"10.0.0.1 n9 west", "10.0.0.2 n9 west"}, "[][10.0.0.1 10.0.0.2]", true},
		{"the same again", "", []string{"10.0.0.1 n9 west", "10.0.0.2 n9 west"}, "[][10.0.0.1 10.0.0.2]", false},
		{"another far node", "", []string{"10.0.0.1 n8 west", "10.0.0.2 n9 west"}, "[][10.0.0.1 10.0.0.2]", false},
		{"this node", "", []string{"10.0.0.1 n8 west", "10.0.0.2 n0 east"}, "[10.0.0.2][10.0.0.1]", true},
		{"a wish", "PreferSameNode", []string{"10.0.0.1 n8 west", "10.0.0.2 n0 east"}, "[10.0.0.2][]", true},
		{"no wish", "", []string{"10.0.0.1 n8 west", "10.0.0.2 n0 east"}, "[10.0.0.2][10.0.0.1]", true},
		{"hints", "", []string{"10.0.0.1 n8 west zones=east", "10.0.0.2 n0 east zones=west"}, "[][10.0.0.1]", true},
		{"only a zone", "", []string{"10.0.0.1 n8 north zones=east", "10.0.0.2 n0 east zones=west"}, "[][10.0.0.1]", true},
	}
	for i, s := range steps {
		v.now = func() time.Time { return testClock().Add(time.Duration(i+1) * time.Second) }
		before := v.serial.Load()
		var list []discoveryv1.Endpoint
		for _, e := range s.eps {
			list = append(list, endpointAt(e))
		}
		headlessOf(v, s.wants, list)
		head, _, _ := strings.Cut(s.want, "]")
		if got := addressGroups(t, z, bare, strings.Count(head, ".")/3, 2); got != s.want {
			t.Errorf("%s: got %s, want %s", s.what, got, s.want)
		}
		if moved := v.serial.Load() != before; moved != s.visible {
			t.Errorf("%s: the serial moved: %v", s.what, moved)
		}
	}
}

// A slice whose endpoints are equally far shares its addresses with the service.
func TestNoLocalityCostsNothing(t *testing.T) {
	order, off := testConfig(t), testConfig(t)
	order.Topology, off.Topology = config.TopologyOrder, config.TopologyOff
	far := []discoveryv1.Endpoint{endpointAt("10.0.0.1 n9 west"), endpointAt("10.0.0.2 n8 west")}
	hinted := []discoveryv1.Endpoint{endpointAt("10.0.0.1 n9 west zones=east nodes=n0"), endpointAt("10.0.0.2 n8 west zones=west nodes=n1")}
	for name, tt := range map[string]struct {
		pack converter
		eps  []discoveryv1.Endpoint
	}{
		"far":                  {newConverter(testConfig(t), testNode), far},
		"hints in mode order":  {newConverter(order, testNode), hinted},
		"hints in mode off":    {newConverter(off, testNode), hinted},
		"hints, nothing known": {newConverter(testConfig(t), Options{}), hinted},
		"zero":                 {converter{}, hinted},
	} {
		es := makeSlice("default", "db", "db-1")
		es.Endpoints = tt.eps
		var f faults
		if s := convertSlice(es, tt.pack, &f); s.localities != "" || s.zones != nil || s.hosts != nil || f.n > 0 {
			t.Errorf("%s: near %q, zones %v, hosts %v, faults %v", name, s.localities, s.zones, s.hosts, f)
		}
	}
}

// The counters of addresses by distance have two bytes.
func TestLocalityBoundsSaturate(t *testing.T) {
	var p localityBounds
	for _, r := range []rank{nodeRank, zoneRank, otherRank} {
		p.addCount(r, 40_000)
	}
	if p != (localityBounds{zoneStart: 40_000, otherStart: 65_535}) {
		t.Errorf("became %v", p)
	}
}
