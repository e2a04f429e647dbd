package queries

import (
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/harness"
)

// compared are nodens' values under the workloads in units of another row's,
// measured in the same round. A row that has no such cell is compared under its
// answer for the cached name with the same rcode.
func (r *Report) compared(f func(harness.Sample) float64, to string, workloads ...harness.Workload) []harness.TargetValue {
	var list []harness.TargetValue
	for _, w := range workloads {
		other := w.Name
		for _, s := range servers {
			if s.Name == to && !w.Asks(s) {
				other = cachedWithRcode(w.QuerySet).Name + ", " + w.LoadShape.Name
			}
		}
		list = append(list, r.Samples.RatioValue(w.QuerySet.Name, harness.Cell{Server: "nodens", Workload: w.Name}, harness.Cell{Server: to, Workload: other}, f))
	}
	return list
}

// cachedWithRcode is the set of cached names with the same rcode.
func cachedWithRcode(q harness.QuerySet) harness.QuerySet {
	for _, other := range harness.QuerySets {
		if !other.Cluster && other.Rcode == q.Rcode {
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
func (r *Report) mainTargets() []harness.Target {
	var list []harness.Target
	list = append(list, r.saturationTargets("cached hit", false)...)
	list = append(list, r.saturationTargets("answer from the cluster view", true)...)
	for _, m := range harness.LoadShapes[1:] {
		at := workloadsWhere(func(w harness.Workload) bool { return w.LoadShape.Name == m.Name })
		list = append(list,
			harness.Target{What: "CPU per query at " + m.Name + ", relative to C echo", Limit: 1.3, Of: r.compared(harness.Sample.CPUPerQuery, "C echo", at...)},
			harness.Target{What: "CPU per query at " + m.Name + ", relative to Go echo", Limit: 1.15, Of: r.compared(harness.Sample.CPUPerQuery, "Go echo", at...)},
			harness.Target{What: "CPU per query at " + m.Name + ", relative to unbound", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "unbound", at...)},
			harness.Target{What: "CPU per query at " + m.Name + ", relative to CoreDNS", Limit: 0.4, Of: r.compared(harness.Sample.CPUPerQuery, "CoreDNS", at...)},
			harness.Target{What: "p50 at " + m.Name + ", relative to C echo", Limit: 1.3, Of: r.compared(harness.Sample.P50, "C echo", at...)},
			harness.Target{What: "p99 at " + m.Name + ", relative to C echo", Limit: 1.3, Of: r.compared(harness.Sample.P99, "C echo", at...)})
	}
	for _, w := range workloadsWhere(func(w harness.Workload) bool { return w.Tool == harness.SaturateTCP }) {
		for _, to := range []string{"dnsdist", "CoreDNS"} {
			list = append(list, harness.Target{What: fmt.Sprintf("CPU per query, %s, relative to %s", w.LoadShape.Name, to), Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, to, w)})
		}
	}
	misses := workloadsWhere(func(w harness.Workload) bool { return w.Tool == harness.CacheMisses && w.Rate == 0 })
	rareMisses := workloadsWhere(func(w harness.Workload) bool { return w.Tool == harness.CacheMisses && w.Rate > 0 })
	floods := workloadsWhere(func(w harness.Workload) bool { return w.Tool == harness.MissFlood })
	list = append(list,
		harness.Target{What: "CPU per query, misses at saturation, relative to unbound", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "unbound", misses...)},
		harness.Target{What: "CPU per query, misses at 2,000 qps, relative to unbound", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "unbound", rareMisses...)},
		harness.Target{What: "CPU per query, misses at 2,000 qps, relative to dnsdist", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "dnsdist", rareMisses...)},
		harness.Target{What: "CPU per query in the flood, relative to unbound", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "unbound", floods...)},
		harness.Target{What: "most memory in the flood, relative to before", Limit: maxGrowth, Of: r.ownValues(harness.Sample.Growth, floods...)},
		harness.Target{What: "p99 of hits in the flood, relative to before", Limit: maxFloodSlowdown, Of: []harness.TargetValue{
			r.Samples.RatioValue("cached A", harness.Cell{Server: "nodens", Workload: "in the flood"}, harness.Cell{Server: "nodens", Workload: "before the flood"}, harness.Sample.P99),
		}},
		harness.Target{What: fmt.Sprintf("memory with %d cached names", DefaultCacheNames), Limit: 60, Unit: "MiB", Of: r.memoryValues(memorySample.fullMebi)},
		harness.Target{What: "memory after the start", Limit: 25, Unit: "MiB", Of: r.memoryValues(memorySample.idleMebi)})
	return list
}

// saturationTargets are the targets for cached or cluster names at saturation.
func (r *Report) saturationTargets(what string, cluster bool) []harness.Target {
	at := workloadsWhere(func(w harness.Workload) bool { return w.Tool == harness.SaturateUDP && w.Cluster == cluster })
	what = "CPU per " + what + " at saturation, "
	return []harness.Target{
		{What: what + "relative to C echo", Limit: 1.15, Of: r.compared(harness.Sample.CPUPerQuery, "C echo", at...)},
		{What: what + "relative to unbound", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "unbound", at...)},
		{What: what + "relative to pdns-recursor", Limit: 1, Below: true, Of: r.compared(harness.Sample.CPUPerQuery, "pdns-recursor", at...)},
		{What: what + "relative to CoreDNS", Limit: 0.4, Of: r.compared(harness.Sample.CPUPerQuery, "CoreDNS", at...)},
	}
}

// ownValues are nodens' values as they are.
func (r *Report) ownValues(f func(harness.Sample) float64, at ...harness.Workload) []harness.TargetValue {
	var list []harness.TargetValue
	for _, w := range at {
		list = append(list, r.Samples.Value(w.QuerySet.Name, harness.Cell{Server: "nodens", Workload: w.Name}, f))
	}
	return list
}

func (r *Report) memoryValues(f func(memorySample) float64) []harness.TargetValue {
	return []harness.TargetValue{r.memory.Value("", harness.Cell{Server: "nodens"}, f)}
}

// workloadsWhere are the workloads that a condition holds for.
func workloadsWhere(holds func(harness.Workload) bool) []harness.Workload {
	var list []harness.Workload
	for _, w := range harness.Workloads() {
		if holds(w) {
			list = append(list, w)
		}
	}
	return list
}

// costLimit returns what a query may cost in comparison with the earlier agent. More names
// than the CPU's caches hold cost more with lists of a library; a miss runs the first part
// of the query path twice.
func costLimit(w harness.Workload) float64 {
	switch {
	case w.Tool == harness.CacheMisses:
		return 1.05
	case w.Count() > harness.NameCount:
		return 1.08
	}
	return 1.03
}

// beforeTargets are what nodens has to show beside the agent before it.
func (r *Report) beforeTargets() []harness.Target {
	var list []harness.Target
	for _, w := range harness.BeforeWorkloads() {
		if w.Tool != harness.SaturateUDP && w.Tool != harness.FixedRate && w.Tool != harness.CacheMisses {
			continue
		}
		list = append(list, harness.Target{
			What: fmt.Sprintf("CPU per query, %s, relative to before", w.Name), Limit: costLimit(w),
			Of: []harness.TargetValue{r.CPURatioValue("", "nodens", harness.BeforeRow, w.Name)},
		})
	}
	return list
}

// Targets are what nodens has to show.
func (r *Report) Targets() []harness.Target {
	if r.Plan.Before != "" {
		return append(r.beforeTargets(), r.mainTargets()...)
	}
	return r.mainTargets()
}
