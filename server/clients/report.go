package clients

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
)

// Counts are numbers of queries. NoError, NXDomain, ServFail and Other are the results; each
// query has one of them.
type Counts struct {
	NoError, NXDomain, ServFail uint64
	// Other are the queries with another rcode, or without a reply.
	Other uint64
	// Hits were answered without an upstream, by a cache, the view of the cluster or a local
	// table; Kernel are those of them that were answered inside the kernel. For Upstream an
	// upstream was asked. Shed were refused because too many queries waited. Each query is one of
	// Hits, Upstream and Shed.
	Hits, Kernel, Upstream, Shed uint64
	// Waste are the NXDOMAIN replies for names that only a search path makes.
	Waste uint64
	// Slow took [Options.Slow] or longer.
	Slow uint64
}

// Queries returns the number of all queries.
func (c Counts) Queries() uint64 { return c.NoError + c.NXDomain + c.ServFail + c.Other }

func (c *counters) export() Counts {
	return Counts{
		NoError: c[noError], NXDomain: c[nxDomain], ServFail: c[servFail], Other: c[otherResult],
		Hits: c[hits], Kernel: c[kernel], Upstream: c[upstream],
		Waste: c[waste], Slow: c[slow], Shed: c[shed],
	}
}

// Client is a row of a report: a pod or an address of no known pod, or what these have in common.
type Client struct {
	Kind Kind
	// Pod is the pod. In a report by workload only its namespace and workload are set, in one
	// by namespace only the namespace. It is zero if Kind is not PodClient.
	Pod Pod
	// Addrs are the addresses of a pod, or the one that is unknown. They are empty in other
	// rows.
	Addrs []netip.Addr
	// Total are the counts since the client's first query; those of a pod that ended over a
	// minute ago are not included.
	Total Counts
	// Window are the counts in the report's window.
	Window Counts
	// Latency is a histogram of the queries that the agent has answered in the last 30 to 60
	// seconds, with the bounds of [LatencyBound]. The kernel's answers are not included.
	Latency [LatencyBuckets]uint64
	TopName TopName // in the window
}

// Report is what the table knows at one moment.
type Report struct {
	// Clients are ordered by kind, namespace, workload, name and address.
	Clients []Client
	// Since is how long the table has counted.
	Since time.Duration
	// Window is the length of the window: between half of what was asked for and all of it,
	// but at most Since.
	Window time.Duration
	// Used is the number of addresses with counters of their own, and Max their limit.
	Used, Max int
	// Refused estimates how many other addresses were counted as (other).
	Refused uint64
}

// By says what the rows of a report are.
type By uint8

const (
	// Pods: a row for each pod and each unknown address.
	Pods By = iota
	// Workloads, Namespaces: a row for each; the unknown addresses share one.
	Workloads
	Namespaces
)

// Report returns the counts of all clients that have asked anything. Pods that have ended are in it for a
// minute.
func (t *Table) Report(by By, w Window) Report {
	t.classify()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleAll()
	now := t.opts.Clock()
	r := Report{
		Since: now - t.started, Window: now - t.windows[w].previous,
		Used: t.opts.MaxClients - len(t.free), Max: t.opts.MaxClients, Refused: t.refused(),
	}
	rows := make(map[rowKey]*Client, r.Used)
	for o := range t.eachOwner {
		if o.total.queries() > 0 {
			key := o.rowKey(by)
			if rows[key] == nil {
				rows[key] = &Client{Kind: o.kind, Pod: key.pod}
			}
			rows[key].add(o, w, by)
		}
	}
	t.setTopNames(rows, by, w, r.Window)
	r.Clients = make([]Client, 0, len(rows))
	for _, row := range rows {
		r.Clients = append(r.Clients, *row)
	}
	slices.SortFunc(r.Clients, compareClients)
	return r
}

// rowKey identifies a row.
type rowKey struct {
	kind Kind
	pod  Pod
	addr netip.Addr // of an unknown client
}

// rowKey returns the key of the row that has o.
func (o *owner) rowKey(by By) rowKey {
	addr := netip.Addr{}
	if o.kind == Unknown {
		addr = o.addrs[0]
	}
	return rowKeyOf(o.kind, o.pod, addr, by)
}

// rowKeyOf returns the key of the row of a client. addr counts only if it is unknown.
func rowKeyOf(kind Kind, pod Pod, addr netip.Addr, by By) rowKey {
	key := rowKey{kind: kind, pod: pod}
	switch {
	case by == Pods && kind == Unknown:
		key.addr = addr
	case by == Workloads:
		key.pod.Name, key.pod.UID = "", ""
	case by == Namespaces:
		key.pod = Pod{Namespace: pod.Namespace}
	}
	return key
}

// add adds what o has counted.
func (c *Client) add(o *owner, w Window, by By) {
	inWindow := o.total.minus(&o.marks[w].previous)
	c.Total, c.Window = c.Total.plus(o.total.export()), c.Window.plus(inWindow.export())
	for i := range c.Latency {
		c.Latency[i] += o.latency.previous[i] + o.latency.current[i]
	}
	if by != Pods {
		return
	}
	for _, a := range o.addrs {
		if !slices.Contains(c.Addrs, a) {
			c.Addrs = append(c.Addrs, a)
		}
	}
}

func (c Counts) plus(d Counts) Counts {
	return Counts{
		NoError: c.NoError + d.NoError, NXDomain: c.NXDomain + d.NXDomain, ServFail: c.ServFail + d.ServFail, Other: c.Other + d.Other,
		Hits: c.Hits + d.Hits, Kernel: c.Kernel + d.Kernel, Upstream: c.Upstream + d.Upstream,
		Waste: c.Waste + d.Waste, Slow: c.Slow + d.Slow, Shed: c.Shed + d.Shed,
	}
}

func compareClients(a, b Client) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace),
		cmp.Compare(a.Pod.Workload.Kind, b.Pod.Workload.Kind), cmp.Compare(a.Pod.Workload.Name, b.Pod.Workload.Name),
		cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID),
		slices.CompareFunc(a.Addrs, b.Addrs, netip.Addr.Compare),
	)
}

// refused estimates how many addresses were counted as (other).
func (t *Table) refused() uint64 {
	var set [refusedBits / 64]uint64
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for w := range set {
			set[w] |= s.refused[w]
		}
		s.mu.Unlock()
	}
	return estimate(&set)
}

// Quantile returns a bound that the percentile p of the latencies is below. It is exact to a factor of two,
// and 0 without latencies.
func (c *Client) Quantile(p uint64) time.Duration {
	i := stat.QuantileBucket(c.Latency[:], p)
	if i < 0 {
		return 0
	}
	return LatencyBound(i)
}
