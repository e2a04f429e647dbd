package main

// What a large cluster may cost.
const (
	// residentNode and residentCluster are MiB: what fits into a pod's request of 64
	// and of 128 beside the cache.
	residentNode, residentCluster = 45, 90
	// partNode and partCluster are parts of CoreDNS's memory.
	partNode, partCluster = 0.2, 0.4
	// overshoot is what the first list may take beyond what stays.
	overshoot = 1.3
	// firstPart and newsPart are parts of the bytes that CoreDNS receives.
	firstPart, newsPart = 0.4, 0.1
	// soon is the time in milliseconds within which a change shows.
	soon = 100
	// hitPrice is the price of an answer out of the view in units of a cache hit's.
	hitPrice = 1.2
)

// promises are what nodens has to show in a large cluster.
func promises() []claim {
	list := []claim{
		{what: "memory after sync, scope node", limit: residentNode, unit: "MiB", of: stayed(stay.resident, byNode)},
		{what: "memory after sync, scope node, CoreDNS's = 1", limit: partNode, of: against(stay.resident, byNode)},
		{what: "memory after sync, scope cluster", limit: residentCluster, unit: "MiB", of: stayed(stay.resident, byCluster)},
		{what: "memory after sync, scope cluster, CoreDNS's = 1", limit: partCluster, of: against(stay.resident, byCluster)},
		{what: "most memory during the first list, after it = 1", limit: overshoot, of: stayed(stay.growth, byNode, byCluster)},
		{what: "bytes received for the first sync, scope node, CoreDNS's = 1", limit: firstPart, of: against(stay.initial, byNode)},
		{what: "bytes received for 1,000 slice changes, scope node, CoreDNS's = 1", limit: newsPart, of: against(stay.news, byNode)},
		{what: "p99 from a change to the answer, 200 changes a second", limit: soon, below: true, unit: "ms", of: stayed(stay.late, byNode, byCluster)},
	}
	for _, p := range []struct{ of, to string }{
		{serviceA, sets[0].name}, {headlessTen, cachedTen}, {headlessTen, sets[0].name}, {clusterGone, sets[1].name},
	} {
		list = append(list, claim{what: "CPU per " + p.of + ", that per " + p.to + " = 1", limit: hitPrice, of: hits(p.of, p.to)})
	}
	return list
}

// stayed are the values of the servers' stays.
func stayed(f func(stay) float64, servers ...string) []value {
	var list []value
	for _, s := range servers {
		list = append(list, value{s, func(r *report) (spread, bool) { return r.stayed(s, f) }})
	}
	return list
}

// against is the server's value in units of CoreDNS's in the same round.
func against(f func(stay) float64, server string) []value {
	return []value{{"", func(r *report) (spread, bool) {
		a, b := r.scale.stays[server], r.scale.stays[peerRow]
		var values []float64
		for i := range min(len(a), len(b)) {
			values = append(values, f(a[i])/f(b[i]))
		}
		if len(values) == 0 {
			return spread{}, false
		}
		return spreadOf(values), true
	}}}
}

// hits are the prices of a set in units of another's of the same process.
func hits(of, to string) []value {
	var list []value
	for _, s := range []string{byNode, byCluster} {
		list = append(list, value{s, func(r *report) (spread, bool) {
			at := func(set string) cell { return cell{s, set + ", " + paced[0].name} }
			return r.ratio(sample.price, at(of), at(to))
		}})
	}
	return list
}

// stayed applies f to the server's stays; false if there is none.
func (r *report) stayed(server string, f func(stay) float64) (spread, bool) {
	var values []float64
	for _, s := range r.scale.stays[server] {
		values = append(values, f(s))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}
