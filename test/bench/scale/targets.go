package scale

import (
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// The limits for a large cluster.
const (
	// maxNodeMemory and maxClusterMemory are in MiB: what fits beside the cache into a pod's
	// memory request of 64 and of 128 MiB.
	maxNodeMemory, maxClusterMemory = 45, 90
	// maxNodeRatio and maxClusterRatio are ratios to CoreDNS's memory.
	maxNodeRatio, maxClusterRatio = 0.2, 0.4
	// maxPeakRatio is the ratio of peak memory during the first list to memory afterwards.
	maxPeakRatio = 1.3
	// maxFirstRatio and maxChangeRatio are ratios to the bytes that CoreDNS receives.
	maxFirstRatio, maxChangeRatio = 0.4, 0.1
	// maxDelay is the longest time in milliseconds from a change to the answer that shows it.
	maxDelay = 100
	// maxHitRatio is the ratio of the CPU time of an answer from the view to a cache hit's.
	maxHitRatio = 1.2
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	list := []harness.Target{
		{What: "memory after sync, scope node", Limit: maxNodeMemory, Unit: "MiB", Of: r.valuesOf(clusterRun.memory, byNode)},
		{What: "memory after sync, scope node, relative to CoreDNS", Limit: maxNodeRatio, Of: r.ratioToCoreDNS(clusterRun.memory, byNode)},
		{What: "memory after sync, scope cluster", Limit: maxClusterMemory, Unit: "MiB", Of: r.valuesOf(clusterRun.memory, byCluster)},
		{What: "memory after sync, scope cluster, relative to CoreDNS", Limit: maxClusterRatio, Of: r.ratioToCoreDNS(clusterRun.memory, byCluster)},
		{What: "most memory during the first list, relative to after it", Limit: maxPeakRatio, Of: r.valuesOf(clusterRun.growth, byNode, byCluster)},
		{What: "bytes received for the first sync, scope node, relative to CoreDNS", Limit: maxFirstRatio, Of: r.ratioToCoreDNS(clusterRun.firstReceived, byNode)},
		{What: "bytes received for 1,000 slice changes, scope node, relative to CoreDNS", Limit: maxChangeRatio, Of: r.ratioToCoreDNS(clusterRun.changeReceived, byNode)},
		{What: "p99 from a change to the answer, 200 changes a second", Limit: maxDelay, Below: true, Unit: "ms", Of: r.valuesOf(clusterRun.p99, byNode, byCluster)},
	}
	for _, p := range []struct{ of, to string }{
		{serviceA, harness.QuerySets[0].Name}, {headlessTen, cachedTen}, {headlessTen, harness.QuerySets[0].Name}, {clusterGone, harness.QuerySets[1].Name},
	} {
		list = append(list, harness.Target{What: "CPU per " + p.of + ", relative to " + p.to, Limit: maxHitRatio, Of: r.ratioToHit(p.of, p.to)})
	}
	return list
}

// valuesOf returns the values of the servers' runs.
func (r *Report) valuesOf(f func(clusterRun) float64, servers ...string) []harness.TargetValue {
	var list []harness.TargetValue
	for _, s := range servers {
		list = append(list, r.runs.Value(s, harness.Cell{Server: s}, f))
	}
	return list
}

// ratioToCoreDNS is the server's value in units of CoreDNS's in the same round.
func (r *Report) ratioToCoreDNS(f func(clusterRun) float64, server string) []harness.TargetValue {
	return []harness.TargetValue{r.runs.RatioValue("", harness.Cell{Server: server}, harness.Cell{Server: harness.CoreDNS}, f)}
}

// ratioToHit are the prices of a set in units of another's of the same process.
func (r *Report) ratioToHit(of, to string) []harness.TargetValue {
	var list []harness.TargetValue
	for _, s := range []string{byNode, byCluster} {
		at := func(set string) harness.Cell {
			return harness.Cell{Server: s, Workload: set + ", " + harness.LoadShapes[0].Name}
		}
		list = append(list, r.Samples.RatioValue(s, at(of), at(to), harness.Sample.CPUPerQuery))
	}
	return list
}
