package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// rows is the number of rows that are kept and returned.
const rows = 1024

// Clients asks all agents for their clients by pod, workload or namespace. Rows with the highest values of order
// come first.
func Clients(ctx context.Context, c *Cluster, by, window string, order func(*report.Client) float64) (*report.ClusterClients, error) {
	m := clientMerge{by: by, order: order, index: make(map[clientKey]int)}
	cluster, err := Ask(ctx, c, &Question[report.Clients]{
		Args:   []string{"top", "--by", by, "--window", window, "-o", "json"},
		Serves: func(a, b *report.Clients) int { return cmp.Compare(a.Total.Queries, b.Total.Queries) },
		Each:   m.add,
	})
	if err != nil {
		return nil, err
	}
	return m.result(cluster, window), nil
}

// clientKey identifies a row. Rows of several nodes with the same key are added up.
type clientKey struct{ node, kind, namespace, workloadKind, workload, pod, address string }

// mergedClient is a row, with the number of queries for each name that is the most frequent one on a node.
type mergedClient struct {
	report.ClusterClient
	key   clientKey
	names map[string]float64
}

// clientMerge adds up the replies of the nodes.
type clientMerge struct {
	by        string
	order     func(*report.Client) float64
	clients   []mergedClient
	index     map[clientKey]int
	more      int
	perSecond float64
	total     report.ClientCounts
}

// key returns the key of a row. Pods and addresses are of one node; the other rows are sums.
func (m *clientMerge) key(node string, c *report.Client) clientKey {
	key := clientKey{kind: c.Kind, namespace: c.Namespace, workloadKind: c.WorkloadKind, workload: c.Workload, pod: c.Pod}
	if m.by == "pod" {
		key.node = node
		if c.Kind == "unknown" && len(c.Addresses) > 0 {
			key.address = c.Addresses[0]
		}
	}
	return key
}

func (m *clientMerge) add(node string, r *report.Clients) {
	m.more += r.More
	m.perSecond += report.PerSecond(r.Total.Queries, r.WindowSeconds)
	m.total = sum(m.total, r.Total)
	for i := range r.Clients {
		m.addClient(node, &r.Clients[i], r.WindowSeconds)
	}
	// No further counts are added to rows of pods, so the lowest rows can be dropped.
	if m.by == "pod" && len(m.clients) > 2*rows {
		m.sort()
		m.more += len(m.clients) - rows
		m.clients = slices.Clip(m.clients[:rows])
		clear(m.index)
		for i := range m.clients {
			m.index[m.clients[i].key] = i
		}
	}
}

func (m *clientMerge) addClient(node string, c *report.Client, seconds float64) {
	key := m.key(node, c)
	i, ok := m.index[key]
	if !ok {
		i = len(m.clients)
		m.index[key] = i
		row := mergedClient{key: key, names: make(map[string]float64)}
		row.Kind, row.Namespace, row.WorkloadKind, row.Workload, row.Pod = c.Kind, c.Namespace, c.WorkloadKind, c.Workload, c.Pod
		row.Node, row.Addresses = key.node, []string{}
		if m.by == "pod" {
			row.Addresses = c.Addresses
		}
		m.clients = append(m.clients, row)
	}
	row := &m.clients[i]
	row.Nodes++
	row.QueriesPerSecond += c.QueriesPerSecond
	row.UpstreamPerSecond += report.PerSecond(c.Window.Upstream, seconds)
	row.P50Seconds, row.P99Seconds = max(row.P50Seconds, c.P50Seconds), max(row.P99Seconds, c.P99Seconds)
	row.Unfollowed, row.UnfollowedCapped = row.Unfollowed+c.Unfollowed, row.UnfollowedCapped+c.UnfollowedCapped
	row.Window, row.Total = sum(row.Window, c.Window), sum(row.Total, c.Total)
	if c.TopName != nil {
		row.names[c.TopName.Name] += c.TopName.Share * float64(c.Window.Queries)
	}
}

func (m *clientMerge) sort() {
	slices.SortFunc(m.clients, func(a, b mergedClient) int {
		return cmp.Or(cmp.Compare(m.order(&b.Client), m.order(&a.Client)), cmp.Compare(b.Window.Queries, a.Window.Queries), compareKeys(&a.key, &b.key))
	})
}

func compareKeys(a, b *clientKey) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.workload, b.workload), cmp.Compare(a.pod, b.pod),
		cmp.Compare(a.kind, b.kind), cmp.Compare(a.node, b.node), cmp.Compare(a.address, b.address), cmp.Compare(a.workloadKind, b.workloadKind))
}

func (m *clientMerge) result(cluster report.Cluster, window string) *report.ClusterClients {
	m.sort()
	r := &report.ClusterClients{
		Cluster: cluster, By: m.by, Window: window, QueriesPerSecond: m.perSecond, Total: m.total,
		Clients: make([]report.ClusterClient, 0, min(rows, len(m.clients))), More: m.more + max(0, len(m.clients)-rows),
	}
	for i := range m.clients[:min(rows, len(m.clients))] {
		row := &m.clients[i]
		if m.total.Queries > 0 {
			row.Share = float64(row.Window.Queries) / float64(m.total.Queries)
		}
		row.TopName = topName(row.names, row.Window.Queries)
		r.Clients = append(r.Clients, row.ClusterClient)
	}
	return r
}

// topName returns the name with the most of queries; nil if none is known.
func topName(names map[string]float64, queries uint64) *report.TopName {
	top, most := "", 0.0
	for name, n := range names {
		if n > most || n == most && name < top {
			top, most = name, n
		}
	}
	if top == "" || queries == 0 {
		return nil
	}
	return &report.TopName{Name: top, Share: most / float64(queries)}
}

func sum(a, b report.ClientCounts) report.ClientCounts {
	return report.ClientCounts{
		Queries: a.Queries + b.Queries, NoError: a.NoError + b.NoError, NXDomain: a.NXDomain + b.NXDomain, Servfail: a.Servfail + b.Servfail, Other: a.Other + b.Other,
		Hits: a.Hits + b.Hits, Kernel: a.Kernel + b.Kernel, Upstream: a.Upstream + b.Upstream, Shed: a.Shed + b.Shed, Waste: a.Waste + b.Waste, Slow: a.Slow + b.Slow,
		TCP: a.TCP + b.TCP, Truncated: a.Truncated + b.Truncated, Limited: a.Limited + b.Limited,
	}
}
