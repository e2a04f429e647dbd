package clients

import "time"

// Level is what the series of a namespace's pods are about.
type Level uint8

const (
	// ByNamespace: the namespace has one series.
	ByNamespace Level = iota
	// ByWorkload: each of its workloads has one.
	ByWorkload
	// NoSeries: there is none. The queries are counted as (other).
	NoSeries
)

// The bounds of the series of a node. The names come from tenants.
const (
	maxNamespaces = 32
	maxWorkloads  = 64
)

// seriesKey names a series. Without a pod it has only a kind, whose name is the namespace; without a
// workload it is a namespace's.
type seriesKey struct {
	kind      Kind
	namespace string
	workload  Workload
}

// level returns the level of a pod's series.
func (k *seriesKey) level() Level {
	if k.workload == (Workload{}) {
		return ByNamespace
	}
	return ByWorkload
}

// series are the totals of a namespace or a workload.
type series struct {
	key   seriesKey
	total counters
	live  time.Duration // when it last had a pod
	ended bool          // it is not in the set any more
}

// touch records that s had a pod until now. A nil series is none.
func (s *series) touch(now time.Duration) {
	if s != nil {
		s.live = now
	}
}

// seriesSet has all series.
type seriesSet struct {
	pods [NoSeries]int // number of the series of pods, by level
	all  map[seriesKey]*series
}

// seriesLimits are the most series of pods, by level.
var seriesLimits = [NoSeries]int{ByNamespace: maxNamespaces, ByWorkload: maxWorkloads}

// get returns the series of that key, or (other) if there are too many.
func (x *seriesSet) get(key seriesKey, now time.Duration) *series {
	if s := x.all[key]; s != nil {
		return s
	}
	if key.kind == PodClient {
		l := key.level()
		if x.pods[l] >= seriesLimits[l] {
			return x.get(seriesKey{kind: Other}, now)
		}
		x.pods[l]++
	}
	s := &series{key: key, live: now}
	x.all[key] = s
	return s
}

// Usage is how much of a table's limits is in use.
type Usage struct {
	// Addresses have counters of their own, Namespaces and Workloads series of their own.
	Addresses, Namespaces, Workloads int
	// The others are the most that there may be.
	MaxAddresses, MaxNamespaces, MaxWorkloads int
}

// Series are the counts of one namespace or workload since its first query, or since its
// series ended for the last time. They never decrease meanwhile.
type Series struct {
	// Namespace is "(host)", "(unknown)" or "(other)" for what has none. (other) is also
	// what exceeds 32 namespaces or 64 workloads, and namespaces without series.
	Namespace string
	// Workload is zero in the series of a namespace.
	Workload Workload
	Counts   Counts
}
