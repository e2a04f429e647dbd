package main

import (
	"fmt"
)

// compared are nodens' values under the workloads in units of another row's,
// measured in the same round. A row that has no such cell is compared under its
// answer for the cached name with the same rcode.
func (r *queriesReport) compared(f func(sample) float64, to string, workloads ...workload) []targetValue {
	var list []targetValue
	for _, w := range workloads {
		other := w.name
		for _, s := range servers {
			if s.name == to && !w.asks(s) {
				other = cachedWithRcode(w.querySet).name + ", " + w.loadShape.name
			}
		}
		list = append(list, targetValue{w.querySet.name, func() (spread, bool) {
			return r.ratio(f, cell{"nodens", w.name}, cell{to, other})
		}})
	}
	return list
}

// cachedWithRcode is the set of cached names with the same rcode.
func cachedWithRcode(q querySet) querySet {
	for _, other := range querySets {
		if !other.cluster && other.rcode == q.rcode {
			return other
		}
	}
	return q
}

// The limits.
const (
	// maxGrowth is how much more memory than before a flood may take and still count as
	// the same: pages that the allocator has not given back yet, not a list that
	// grows.
	maxGrowth = 1.10
	// maxFloodSlowdown is how much later than usual answers may come.
	maxFloodSlowdown = 1.10
)

// mainTargets are what nodens has to show.
func (r *queriesReport) mainTargets() []target {
	var list []target
	list = append(list, r.saturationTargets("cached hit", false)...)
	list = append(list, r.saturationTargets("answer from the cluster view", true)...)
	for _, m := range loadShapes[1:] {
		at := workloadsWhere(func(w workload) bool { return w.loadShape.name == m.name })
		list = append(list,
			target{what: "CPU per query at " + m.name + ", C echo's = 1", limit: 1.3, of: r.compared(sample.cpuPerQuery, "C echo", at...)},
			target{what: "CPU per query at " + m.name + ", CoreDNS's = 1", limit: 0.4, of: r.compared(sample.cpuPerQuery, "CoreDNS", at...)},
			target{what: "p50 at " + m.name + ", C echo's = 1", limit: 1.3, of: r.compared(sample.p50, "C echo", at...)},
			target{what: "p99 at " + m.name + ", C echo's = 1", limit: 1.3, of: r.compared(sample.p99, "C echo", at...)})
	}
	for _, w := range workloadsWhere(func(w workload) bool { return w.tool == saturateTCP }) {
		for _, to := range []string{"dnsdist", "CoreDNS"} {
			list = append(list, target{what: fmt.Sprintf("CPU per query, %s, %s's = 1", w.loadShape.name, to), limit: 1, below: true, of: r.compared(sample.cpuPerQuery, to, w)})
		}
	}
	misses := workloadsWhere(func(w workload) bool { return w.tool == cacheMisses })
	floods := workloadsWhere(func(w workload) bool { return w.tool == missFlood })
	list = append(list,
		target{what: "CPU per query, misses at saturation, unbound's = 1", limit: 1, below: true, of: r.compared(sample.cpuPerQuery, "unbound", misses...)},
		target{what: "CPU per query in the flood, unbound's = 1", limit: 1, below: true, of: r.compared(sample.cpuPerQuery, "unbound", floods...)},
		target{what: "most memory in the flood, before it = 1", limit: maxGrowth, of: r.ownValues(sample.growth, floods...)},
		target{what: "p99 of hits in the flood, before it = 1", limit: maxFloodSlowdown, of: []targetValue{{"cached A", func() (spread, bool) {
			return r.ratio(sample.p99, cell{"nodens", "in the flood"}, cell{"nodens", "before the flood"})
		}}}},
		target{what: fmt.Sprintf("memory with %d cached names", defaultCacheNames), limit: 60, unit: "MiB", of: r.memoryValues(func(h memorySample) uint64 { return h.full })},
		target{what: "memory after the start", limit: 25, unit: "MiB", of: r.memoryValues(func(h memorySample) uint64 { return h.idle })})
	return list
}

// saturationTargets are the claims for cached or cluster names at saturation.
func (r *queriesReport) saturationTargets(what string, cluster bool) []target {
	at := workloadsWhere(func(w workload) bool { return w.tool == saturateUDP && w.cluster == cluster })
	what = "CPU per " + what + " at saturation, "
	return []target{
		{what: what + "C echo's = 1", limit: 1.15, of: r.compared(sample.cpuPerQuery, "C echo", at...)},
		{what: what + "unbound's = 1", limit: 1, below: true, of: r.compared(sample.cpuPerQuery, "unbound", at...)},
		{what: what + "pdns-recursor's = 1", limit: 1, below: true, of: r.compared(sample.cpuPerQuery, "pdns-recursor", at...)},
		{what: what + "CoreDNS's = 1", limit: 0.4, of: r.compared(sample.cpuPerQuery, "CoreDNS", at...)},
	}
}

// ownValues are nodens' values as they are.
func (r *queriesReport) ownValues(f func(sample) float64, at ...workload) []targetValue {
	var list []targetValue
	for _, w := range at {
		list = append(list, targetValue{w.querySet.name, func() (spread, bool) {
			c := cell{"nodens", w.name}
			if len(r.samples[c]) == 0 {
				return spread{}, false
			}
			return r.over(c, f), true
		}})
	}
	return list
}

func (r *queriesReport) memoryValues(f func(memorySample) uint64) []targetValue {
	return []targetValue{{"", func() (spread, bool) {
		h, ok := r.holds["nodens"]
		return spreadOf([]float64{mebi(f(h))}), ok
	}}}
}

// workloadsWhere are the workloads that a condition holds for.
func workloadsWhere(holds func(workload) bool) []workload {
	var list []workload
	for _, w := range workloads() {
		if holds(w) {
			list = append(list, w)
		}
	}
	return list
}

// costLimit is what a query may cost the agent beside the one before it.
const costLimit = 1.02

// beforeTargets are what nodens has to show beside the agent before it.
func (r *queriesReport) beforeTargets() []target {
	var list []target
	for _, w := range workloadsWhere(func(w workload) bool { return w.tool == saturateUDP || w.tool == fixedRate || w.tool == cacheMisses }) {
		list = append(list, target{
			what: fmt.Sprintf("CPU per query, %s, before = 1", w.name), limit: costLimit,
			of: []targetValue{{"", func() (spread, bool) {
				return r.ratio(sample.cpuPerQuery, cell{"nodens", w.name}, cell{beforeRow, w.name})
			}}},
		})
	}
	return list
}

// Targets are what nodens has to show.
func (r *queriesReport) Targets() []target {
	if r.plan.before != "" {
		return append(r.beforeTargets(), r.mainTargets()...)
	}
	return r.mainTargets()
}
