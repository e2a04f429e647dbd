package main

// What a large cluster may cost.
const (
	// maxNodeMemory and residentCluster are MiB: what fits into a pod's request of 64
	// and of 128 beside the cache.
	maxNodeMemory, maxClusterMemory = 45, 90
	// maxNodeRatio and partCluster are parts of CoreDNS's memory.
	maxNodeRatio, maxClusterRatio = 0.2, 0.4
	// maxPeakRatio is what the first list may take beyond what stays.
	maxPeakRatio = 1.3
	// maxFirstRatio and newsPart are parts of the bytes that CoreDNS receives.
	maxFirstRatio, maxChangeRatio = 0.4, 0.1
	// maxDelay is the time in milliseconds within which a change shows.
	maxDelay = 100
	// maxHitRatio is the price of an answer out of the view in units of a cache hit's.
	maxHitRatio = 1.2
)

// Targets are what nodens has to show in a large cluster.
func (r *scaleReport) Targets() []target {
	list := []target{
		{what: "memory after sync, scope node", limit: maxNodeMemory, unit: "MiB", of: r.valuesOf(clusterRun.memory, byNode)},
		{what: "memory after sync, scope node, CoreDNS's = 1", limit: maxNodeRatio, of: r.ratioToCoreDNS(clusterRun.memory, byNode)},
		{what: "memory after sync, scope cluster", limit: maxClusterMemory, unit: "MiB", of: r.valuesOf(clusterRun.memory, byCluster)},
		{what: "memory after sync, scope cluster, CoreDNS's = 1", limit: maxClusterRatio, of: r.ratioToCoreDNS(clusterRun.memory, byCluster)},
		{what: "most memory during the first list, after it = 1", limit: maxPeakRatio, of: r.valuesOf(clusterRun.growth, byNode, byCluster)},
		{what: "bytes received for the first sync, scope node, CoreDNS's = 1", limit: maxFirstRatio, of: r.ratioToCoreDNS(clusterRun.firstReceived, byNode)},
		{what: "bytes received for 1,000 slice changes, scope node, CoreDNS's = 1", limit: maxChangeRatio, of: r.ratioToCoreDNS(clusterRun.changeReceived, byNode)},
		{what: "p99 from a change to the answer, 200 changes a second", limit: maxDelay, below: true, unit: "ms", of: r.valuesOf(clusterRun.p99, byNode, byCluster)},
	}
	for _, p := range []struct{ of, to string }{
		{serviceA, querySets[0].name}, {headlessTen, cachedTen}, {headlessTen, querySets[0].name}, {clusterGone, querySets[1].name},
	} {
		list = append(list, target{what: "CPU per " + p.of + ", that per " + p.to + " = 1", limit: maxHitRatio, of: r.ratioToHit(p.of, p.to)})
	}
	return list
}

// valuesOf are the values of the servers' stays.
func (r *scaleReport) valuesOf(f func(clusterRun) float64, servers ...string) []targetValue {
	var list []targetValue
	for _, s := range servers {
		list = append(list, targetValue{s, func() (spread, bool) { return r.runSpread(s, f) }})
	}
	return list
}

// ratioToCoreDNS is the server's value in units of CoreDNS's in the same round.
func (r *scaleReport) ratioToCoreDNS(f func(clusterRun) float64, server string) []targetValue {
	return []targetValue{{"", func() (spread, bool) {
		a, b := r.runs[server], r.runs[coreDNS]
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

// ratioToHit are the prices of a set in units of another's of the same process.
func (r *scaleReport) ratioToHit(of, to string) []targetValue {
	var list []targetValue
	for _, s := range []string{byNode, byCluster} {
		list = append(list, targetValue{s, func() (spread, bool) {
			at := func(set string) cell { return cell{s, set + ", " + loadShapes[0].name} }
			return r.ratio(sample.cpuPerQuery, at(of), at(to))
		}})
	}
	return list
}

// runSpread applies f to the server's stays; false if there is none.
func (r *scaleReport) runSpread(server string, f func(clusterRun) float64) (spread, bool) {
	var values []float64
	for _, s := range r.runs[server] {
		values = append(values, f(s))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}
