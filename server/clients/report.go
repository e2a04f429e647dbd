package clients

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/sketch"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
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
	// Stream came over a connection. Truncated got a reply over UDP with TC set, Capped are those of them whose client
	// would have taken a larger one.
	Stream, Truncated, Capped uint64
	// AAAA are the queries for IPv6 addresses that the agent has answered, AAAAUpstream those of them for which an
	// upstream was asked. The kernel's answers are not included.
	AAAA, AAAAUpstream uint64
	// Limited are the queries, and of [ReasonConnections] the connections, that were limited, by [Reason]. Those
	// that were refused or dropped before they were resolved are not among Queries.
	Limited [numReasons]uint64
}

// AllLimited returns the number of limited queries and connections.
func (c Counts) AllLimited() (n uint64) {
	for _, m := range c.Limited {
		n += m
	}
	return n
}

// Queries returns the number of all queries.
func (c Counts) Queries() uint64 { return c.NoError + c.NXDomain + c.ServFail + c.Other }

func (c *counters) export() Counts {
	return Counts{
		NoError: c[noError], NXDomain: c[nxDomain], ServFail: c[servFail], Other: c[otherResult],
		Hits: c[hits], Kernel: c[kernel], Upstream: c[upstream],
		Waste: c[waste], Slow: c[slow], Shed: c[shed],
		Stream: c[stream], Truncated: c[truncated], Capped: c[capped], AAAA: c[aaaa], AAAAUpstream: c[aaaaUpstream], Limited: [numReasons]uint64(c[limited:]),
	}
}

// Client is a row of a report: a pod, an address of no known pod, or the sum of these for a workload or a namespace.
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
	// Unfollowed are the truncated replies in the window to pods and addresses that have never asked over a connection
	// ([Counts.Stream]), UnfollowedCapped those of them that would have taken a larger one.
	Unfollowed, UnfollowedCapped uint64
	TopName                      TopName // in the window
}

// Report has the counts of the table at one moment.
type Report struct {
	// Clients are ordered by the queries in the window, the highest number first; those with the same number by
	// kind, namespace, workload, name and address.
	Clients []Client
	// More is the number of clients that are not in Clients, and Total the counts of all clients in the
	// window.
	More  int
	Total Counts
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
func (t *Table) Report(by By, w Window) Report { return t.report(by, w, math.MaxInt, 0) }

// Top returns what [Table.Report] returns, with the first limit clients only. It is for callers that ask every
// few seconds: only these clients are described, and their top names may be ten seconds old.
func (t *Table) Top(by By, w Window, limit int) Report { return t.report(by, w, limit, topNamesAge) }

// report returns the first limit clients, with top names of a maximum age.
func (t *Table) report(by By, w Window, limit int, age time.Duration) Report {
	t.classify()
	names := t.names.clientNames(t.opts.Clock(), w, age)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settleAll()
	now := t.opts.Clock()
	r := Report{
		Since: now - t.started, Window: now - t.windows[w].previous,
		Used: t.opts.MaxClients - len(t.free), Max: t.opts.MaxClients, Refused: t.refused(),
	}
	g := t.group(by, w)
	r.Total = g.total.export()
	rows := g.first(limit)
	r.More = len(g.rows) - len(rows)
	r.Clients = g.clients(rows, w)
	t.setTopNames(r.Clients, by, names, r.Window)
	return r
}

// row is a row of a report, before its counts are added up.
type row struct {
	owner   *owner // the first one
	queries uint64 // in the window
	number  int32  // in the order in which rows were found
}

// grouping has the owners that have asked anything, by row.
type grouping struct {
	by     By
	rows   []row
	owners []*owner
	rowOf  []int32 // of each of owners: the number of its row
	total  counters
}

// group groups the owners.
func (t *Table) group(by By, w Window) *grouping {
	size := len(t.pods) + len(t.others)
	g := &grouping{by: by, rows: make([]row, 0, size), owners: make([]*owner, 0, size), rowOf: make([]int32, 0, size)}
	shared := make(map[rowKey]int32) // the rows that may have several owners
	for o := range t.eachOwner {
		if !o.total.any() {
			continue
		}
		number := int32(len(g.rows))
		if by != Pods || o.kind == Unknown {
			key := o.rowKey(by)
			if n, ok := shared[key]; ok {
				number = n
			} else {
				shared[key] = number
			}
		}
		if int(number) == len(g.rows) {
			g.rows = append(g.rows, row{owner: o, number: number})
		}
		n := o.total.since(&o.marks[w].previous)
		g.total.add(&n)
		g.rows[number].queries += n.queries()
		g.owners, g.rowOf = append(g.owners, o), append(g.rowOf, number)
	}
	return g
}

// first returns the first limit rows, in their order.
func (g *grouping) first(limit int) []row {
	if limit >= len(g.rows) {
		slices.SortFunc(g.rows, g.compare)
		return g.rows
	}
	list := make([]row, 0, limit+1)
	for _, r := range g.rows { // most of them are behind the last one
		if len(list) == limit && (limit == 0 || g.compare(r, list[limit-1]) >= 0) {
			continue
		}
		i, _ := slices.BinarySearchFunc(list, r, g.compare)
		list = slices.Insert(list, i, r)
		list = list[:min(len(list), limit)]
	}
	return list
}

// compare orders rows by their queries, the highest number first, and those with the same number by their keys.
func (g *grouping) compare(a, b row) int {
	if a.queries != b.queries {
		return cmp.Compare(b.queries, a.queries)
	}
	x, y := a.owner.rowKey(g.by), b.owner.rowKey(g.by)
	return x.compare(&y)
}

// clients returns the rows with what their owners have counted.
func (g *grouping) clients(rows []row, w Window) []Client {
	list, index := make([]Client, len(rows)), make([]int32, len(g.rows))
	for i := range rows {
		key := rows[i].owner.rowKey(g.by)
		list[i] = Client{Kind: key.kind, Pod: key.pod}
		index[rows[i].number] = int32(i) + 1
	}
	for i, o := range g.owners {
		if at := index[g.rowOf[i]]; at > 0 {
			list[at-1].add(o, w, g.by)
		}
	}
	return list
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
	inWindow := o.total.since(&o.marks[w].previous)
	c.Total, c.Window = c.Total.plus(o.total.export()), c.Window.plus(inWindow.export())
	if o.total[stream] == 0 {
		c.Unfollowed, c.UnfollowedCapped = c.Unfollowed+inWindow[truncated], c.UnfollowedCapped+inWindow[capped]
	}
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
	for r := range c.Limited {
		d.Limited[r] += c.Limited[r]
	}
	return Counts{
		NoError: c.NoError + d.NoError, NXDomain: c.NXDomain + d.NXDomain, ServFail: c.ServFail + d.ServFail, Other: c.Other + d.Other,
		Hits: c.Hits + d.Hits, Kernel: c.Kernel + d.Kernel, Upstream: c.Upstream + d.Upstream,
		Waste: c.Waste + d.Waste, Slow: c.Slow + d.Slow, Shed: c.Shed + d.Shed,
		Stream: c.Stream + d.Stream, Truncated: c.Truncated + d.Truncated, Capped: c.Capped + d.Capped, Limited: d.Limited,
		AAAA: c.AAAA + d.AAAA, AAAAUpstream: c.AAAAUpstream + d.AAAAUpstream,
	}
}

// compare orders rows by kind, namespace, workload, name and address.
func (k *rowKey) compare(other *rowKey) int {
	p, q := &k.pod, &other.pod
	return cmp.Or(
		cmp.Compare(k.kind, other.kind), cmp.Compare(p.Namespace, q.Namespace),
		cmp.Compare(p.Workload.Kind, q.Workload.Kind), cmp.Compare(p.Workload.Name, q.Workload.Name),
		cmp.Compare(p.Name, q.Name), cmp.Compare(p.UID, q.UID), k.addr.Compare(other.addr),
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

// Owner returns whose the address is now. The Pod is the zero value unless it is a pod of this node.
// It takes a lock that readings hold for some milliseconds. The addresses of a nil Table are
// unknown.
func (t *Table) Owner(addr netip.Addr) (Kind, Pod) {
	if t == nil {
		return Unknown, Pod{}
	}
	if o := t.owner(addr); o != nil && o.kind != Unknown {
		return o.kind, o.pod
	}
	if t.opts.Host != nil && t.opts.Host(addr.Unmap()) {
		return Host, Pod{}
	}
	return Unknown, Pod{}
}

// owner returns the owner of the address, nil if it is not known yet. Its kind and pod don't change.
func (t *Table) owner(addr netip.Addr) *owner {
	key := addrKey(addr.As16())
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.addrs[key]; c != nil {
		return c.owner
	}
	return nil
}

// Addrs returns the addresses, in no order, whose owners selects selects. It is called with a lock held, and
// must not call the Table.
func (t *Table) Addrs(selects func(Kind, Pod) bool) (list []netip.Addr) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, c := range t.addrs {
		if c.owner != nil && selects(c.owner.kind, c.owner.pod) {
			list = append(list, key.addr())
		}
	}
	return list
}

// TopName is the name that a client asks for most.
type TopName struct {
	// Name is in text form with the final dot, "" for none.
	Name string
	// Share is the least share of the client's queries that are for Name. Of the kernel's answers it is an
	// estimate.
	Share float64
}

// topName adds up the names of one row.
type topName struct {
	queries map[string]uint64 // by the name's wire form: at least
	best    string
}

// setTopNames fills in the names that the clients of a report ask for most. counted is the length of the
// report's window.
func (t *Table) setTopNames(list []Client, by By, names sketch.Report, counted time.Duration) {
	index, tops := make(map[rowKey]int, len(list)), make([]topName, len(list))
	for i := range list {
		c, addr := &list[i], netip.Addr{}
		if c.Kind == Unknown && len(c.Addrs) > 0 {
			addr = c.Addrs[0]
		}
		index[rowKeyOf(c.Kind, c.Pod, addr, by)] = i
	}
	for _, e := range names.Entries {
		if e.Count == e.Error { // it may have asked for another name each time
			continue
		}
		n, name := t.clientOf(e.Key)
		if i, ok := index[rowKeyOf(n.Kind, n.Pod, n.Addr, by)]; ok {
			tops[i].add(name, e.Count-e.Error)
		}
	}
	for i := range tops {
		if top := &tops[i]; top.best != "" {
			list[i].TopName = TopName{Name: wire.Name(top.best).String(), Share: top.share(list[i].Window.Queries(), names.Covered, counted)}
		}
	}
}

// add adds n queries for name.
func (x *topName) add(name string, n uint64) {
	if x.queries == nil {
		x.queries = make(map[string]uint64)
	}
	x.queries[name] += n
	if x.best == "" || x.queries[name] > x.queries[x.best] {
		x.best = name
	}
}

// share returns the share of the most frequent name in all queries. The windows of names and of counts differ in
// length: named and counted.
func (x *topName) share(all uint64, named, counted time.Duration) float64 {
	if all == 0 || named <= 0 || counted <= 0 {
		return 0
	}
	return min(1, float64(x.queries[x.best])/named.Seconds()*counted.Seconds()/float64(all))
}

// Names returns the limit most frequent names. While a stripe has up to 1,000 queries a
// second, all are counted; of more, a random part is, which keeps the counts right on average. [TopFailing] and
// [TopSlow] count all. Of the kernel's answers a random sample is counted.
func (t *Table) Names(topic Topic, w Window, limit int) NameReport {
	t.classify()
	r := t.names.top(topic, t.opts.Clock(), w)
	report := NameReport{Covered: r.Covered, Total: r.Sum, Floor: r.Floor, MaxWeight: r.MaxWeight}
	switch topic {
	case TopFailing, TopSlow, TopDenied:
	case TopBypass:
		report.MaxWeight = 1 // all packets are counted
	default:
		report.KernelSample = int(t.kernelSample.Load())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all, shared := len(r.Entries), topic.hasClient()
	if !shared { // else entries may share a row
		r.Entries = r.Entries[:min(limit, all)]
	}
	report.Names = t.nameCounts(topic, r.Entries)
	if shared {
		all = len(report.Names)
	}
	report.Names = report.Names[:min(limit, all)]
	report.More = all - len(report.Names)
	return report
}

// nameCounts returns the rows of entries. A client that has lost its address and got it back has one row for
// a name.
func (t *Table) nameCounts(topic Topic, entries []sketch.Entry) []NameCount {
	rows := make([]NameCount, 0, len(entries))
	index := make(map[NameCount]int, len(entries)) // by row without numbers
	for _, e := range entries {
		row := t.nameCount(topic, e.Key)
		i, ok := index[row]
		if !ok {
			i = len(rows)
			index[row] = i
			rows = append(rows, row)
		}
		rows[i].Count += e.Count
		rows[i].Error += e.Error
	}
	slices.SortStableFunc(rows, func(a, b NameCount) int { return cmp.Compare(b.Count, a.Count) })
	return rows
}

// nameCount returns the row of a key, without numbers.
func (t *Table) nameCount(topic Topic, key string) (row NameCount) {
	switch topic {
	case TopClientNames, TopDenied:
		row, key = t.clientOf(key)
	case TopFailing, TopSlow:
		row.Cause, key = Cause(key[0]), key[1:]
	case TopBypass:
		row, row.Name = t.clientOf(key)
		return row
	}
	row.Name = wire.Name(key).String()
	return row
}

// clientOf returns the client of a key of a topic that has clients, as a row without name and numbers, and the name's
// wire form.
func (t *Table) clientOf(key string) (row NameCount, name string) {
	id := binary.BigEndian.Uint32([]byte(key[:idLen]))
	row.Kind = Unknown
	if x := t.identities[id]; x != nil {
		row.Kind, row.Pod, row.Addr = x.kind, x.pod, x.key.addr()
	} else if id == 0 {
		row.Kind = Other
	}
	return row, key[idLen:]
}

// seriesKeyOf returns the key of o's series.
func (t *Table) seriesKeyOf(o *owner) seriesKey {
	if o.kind != PodClient {
		return seriesKey{kind: o.kind}
	}
	level, ok := t.levels[o.pod.Namespace]
	if !ok {
		level = t.opts.Level
	}
	switch level {
	case ByNamespace:
		return seriesKey{namespace: o.pod.Namespace}
	case ByWorkload:
		return seriesKey{namespace: o.pod.Namespace, workload: o.pod.Workload}
	default:
		return seriesKey{kind: Other}
	}
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

// Usage returns how much of the limits is in use.
func (t *Table) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Usage{
		Addresses: t.opts.MaxClients - len(t.free), Namespaces: t.series.pods[ByNamespace], Workloads: t.series.pods[ByWorkload],
		MaxAddresses: t.opts.MaxClients, MaxNamespaces: maxNamespaces, MaxWorkloads: maxWorkloads,
	}
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
