package clients

import "time"

// Level is what a series of totals is about.
type Level uint8

const (
	ByNamespace Level = iota
	ByWorkload
	numLevels
)

// The bounds of the series of a node. The names come from tenants.
const (
	maxNamespaces = 32
	maxWorkloads  = 64
)

// seriesKey names a series. Without a pod it has only a kind, whose name is the namespace.
type seriesKey struct {
	kind      Kind
	namespace string
	workload  Workload
}

// series are the totals of a namespace or a workload.
type series struct {
	key   seriesKey
	total counters
	live  time.Duration // when it last had a pod
	ended bool          // it is not in its set any more
}

// touch records that s had a pod until now. A nil series is none.
func (s *series) touch(now time.Duration) {
	if s != nil {
		s.live = now
	}
}

// seriesSet has the series of one level.
type seriesSet struct {
	limit int // of the series of pods
	pods  int
	all   map[seriesKey]*series
}

func newSeries() (sets [numLevels]seriesSet) {
	for i, limit := range [numLevels]int{maxNamespaces, maxWorkloads} {
		sets[i] = seriesSet{limit: limit, all: make(map[seriesKey]*series)}
	}
	return sets
}

// seriesKeyOf returns the key of o's series.
func seriesKeyOf(o *owner, l Level) seriesKey {
	switch {
	case o.kind != PodClient:
		return seriesKey{kind: o.kind}
	case l == ByNamespace:
		return seriesKey{namespace: o.pod.Namespace}
	}
	return seriesKey{namespace: o.pod.Namespace, workload: o.pod.Workload}
}

// get returns the series of that key, or (other) if there are too many.
func (x *seriesSet) get(key seriesKey, now time.Duration) *series {
	if s := x.all[key]; s != nil {
		return s
	}
	if key.kind == PodClient {
		if x.pods >= x.limit {
			return x.get(seriesKey{kind: Other}, now)
		}
		x.pods++
	}
	s := &series{key: key, live: now}
	x.all[key] = s
	return s
}

// creditSeries adds n to the series of o. An owner stays with a series of its own until that
// ends; one that was counted as (other) gets one when there is room.
func (t *Table) creditSeries(o *owner, n *counters) {
	now := t.opts.Clock()
	for l := range numLevels {
		s := o.series[l]
		if s == nil || s.ended || s.key.kind == Other {
			s = t.series[l].get(seriesKeyOf(o, l), now)
			o.series[l] = s
		}
		s.total.add(n)
	}
}

// endSeries drops the series whose last pod ended a minute ago.
func (t *Table) endSeries(now time.Duration) {
	for _, o := range t.pods {
		if o.live == 0 {
			continue
		}
		for l := range numLevels {
			t.series[l].all[seriesKeyOf(o, l)].touch(now)
		}
	}
	for l := range t.series {
		x := &t.series[l]
		for key, s := range x.all {
			if key.kind == PodClient && now-s.live >= keepEnded {
				delete(x.all, key)
				s.ended = true
				x.pods--
			}
		}
	}
}

// Usage is how much of a table's limits is in use.
type Usage struct {
	// Addresses have counters of their own, Namespaces and Workloads totals of their own.
	Addresses, Namespaces, Workloads int
	// The others are the most that there may be.
	MaxAddresses, MaxNamespaces, MaxWorkloads int
}

// Usage returns how much of the limits is in use.
func (t *Table) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Usage{
		Addresses: t.opts.MaxClients - len(t.free), Namespaces: t.series[ByNamespace].pods, Workloads: t.series[ByWorkload].pods,
		MaxAddresses: t.opts.MaxClients, MaxNamespaces: maxNamespaces, MaxWorkloads: maxWorkloads,
	}
}

// Series are the counts of one namespace or workload since its first query, or since its
// series ended for the last time. They never decrease meanwhile.
type Series struct {
	// Namespace is "(host)", "(unknown)" or "(other)" for what has none. (other) is also
	// what exceeds 32 namespaces or 64 workloads.
	Namespace string
	// Workload is zero in a series of [ByNamespace].
	Workload Workload
	Counts   Counts
}

// Series returns the totals by namespace or workload, in no order. A series exists from its
// first query until 60 s after its last pod has ended; those of no pod stay.
func (t *Table) Series(l Level) []Series {
	t.classify()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleAll()
	t.endSeries(t.opts.Clock())
	list := make([]Series, 0, len(t.series[l].all))
	for key, s := range t.series[l].all {
		out := Series{Namespace: key.namespace, Workload: key.workload, Counts: s.total.export()}
		if key.kind != PodClient {
			out.Namespace = key.kind.String()
		}
		list = append(list, out)
	}
	return list
}
