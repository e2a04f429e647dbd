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

// levelOf returns the level of a namespace.
func (t *Table) levelOf(namespace string) Level {
	if l, ok := t.levels[namespace]; ok {
		return l
	}
	return t.opts.Level
}

// seriesKeyOf returns the key of o's series.
func (t *Table) seriesKeyOf(o *owner) seriesKey {
	if o.kind != PodClient {
		return seriesKey{kind: o.kind}
	}
	switch t.levelOf(o.pod.Namespace) {
	case ByNamespace:
		return seriesKey{namespace: o.pod.Namespace}
	case ByWorkload:
		return seriesKey{namespace: o.pod.Namespace, workload: o.pod.Workload}
	default:
		return seriesKey{kind: Other}
	}
}

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

// creditSeries adds n to the series of o. An owner keeps a series of its own until the series ends.
// An owner that was counted as (other) gets a series when there is room.
func (t *Table) creditSeries(o *owner, n *counters) {
	s := o.series
	if s == nil || s.ended || s.key.kind == Other {
		s = t.series.get(t.seriesKeyOf(o), t.opts.Clock())
		o.series = s
	}
	s.total.add(n)
}

// endSeries drops the series whose last pod ended a minute ago.
func (t *Table) endSeries(now time.Duration) {
	for _, o := range t.pods {
		if o.live > 0 {
			t.series.all[t.seriesKeyOf(o)].touch(now)
		}
	}
	for key, s := range t.series.all {
		if key.kind == PodClient && now-s.live >= keepEnded {
			delete(t.series.all, key)
			s.ended = true
			t.series.pods[key.level()]--
		}
	}
}

// SetLevel makes l the level of a namespace instead of [Options.Level]. What was counted so far stays in
// the series that it is in, which end as if their last pods had ended now.
func (t *Table) SetLevel(namespace string, l Level) {
	t.changeLevel(namespace, func() { t.levels[namespace] = l })
}

// ResetLevel makes [Options.Level] the level of a namespace again.
func (t *Table) ResetLevel(namespace string) {
	t.changeLevel(namespace, func() { delete(t.levels, namespace) })
}

// changeLevel calls change, after which the pods of the namespace are counted in other series.
func (t *Table) changeLevel(namespace string, change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.addrs {
		if c.owner != nil && c.owner.kind == PodClient && c.owner.pod.Namespace == namespace {
			t.settle(c)
		}
	}
	change()
	now := t.opts.Clock()
	for _, o := range t.pods {
		if o.pod.Namespace == namespace {
			if o.live > 0 {
				o.series.touch(now)
			}
			o.series = nil
		}
	}
}

// Usage is how much of a table's limits is in use.
type Usage struct {
	// Addresses have counters of their own, Namespaces and Workloads series of their own.
	Addresses, Namespaces, Workloads int
	// The others are the most that there may be.
	MaxAddresses, MaxNamespaces, MaxWorkloads int
}

// Usage returns how much of the limits is in use.
func (t *Table) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Usage{
		Addresses: t.opts.MaxClients - len(t.free), Namespaces: t.series.pods[ByNamespace], Workloads: t.series.pods[ByWorkload],
		MaxAddresses: t.opts.MaxClients, MaxNamespaces: maxNamespaces, MaxWorkloads: maxWorkloads,
	}
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

// Series returns the totals, each query in one of them, in no order. A series exists from its
// first query until 60 s after its last pod has ended; those of no pod stay.
func (t *Table) Series() []Series {
	t.classify()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleAll()
	t.endSeries(t.opts.Clock())
	list := make([]Series, 0, len(t.series.all))
	for key, s := range t.series.all {
		out := Series{Namespace: key.namespace, Workload: key.workload, Counts: s.total.export()}
		if key.kind != PodClient {
			out.Namespace = key.kind.String()
		}
		list = append(list, out)
	}
	return list
}
