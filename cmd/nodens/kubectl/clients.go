package kubectl

import (
	"cmp"
	"context"

	"github.com/nodens-dns/nodens/internal/report"
)

// clientKey identifies a row. Rows of several nodes with the same key are added up.
type clientKey struct{ node, kind, namespace, workloadKind, workload, pod, address string }

// mergedClient is a row, with the number of queries for each name that is the most frequent one on a node.
type mergedClient struct {
	report.ClusterClient
	names map[string]float64
}

// Clients asks all agents for their clients by pod, workload or namespace. Rows with the highest values of order
// come first.
func Clients(ctx context.Context, c *Cluster, by, window string, order func(*report.Client) float64) (*report.ClusterClients, error) {
	m := merger[clientKey, mergedClient]{key: keyOfClient, merge: mergeClients, order: func(a, b *mergedClient) int {
		return cmp.Or(cmp.Compare(order(&b.Client), order(&a.Client)), cmp.Compare(b.Window.Queries, a.Window.Queries), compareClients(a, b))
	}}
	r := &report.ClusterClients{By: by, Window: window, Clients: []report.ClusterClient{}}
	var err error
	r.Cluster, err = Ask(ctx, c, &Question[report.Clients]{
		Args:   []string{"top", "--by", by, "--window", window, "-o", "json"},
		Serves: func(a, b *report.Clients) int { return cmp.Compare(a.Total.Queries, b.Total.Queries) },
		Each: func(node string, reply *report.Clients) {
			r.More += reply.More
			r.QueriesPerSecond += report.PerSecond(reply.Total.Queries, reply.WindowSeconds)
			r.Total = sum(r.Total, reply.Total)
			for _, row := range ClientRows(node, reply) {
				row.Ndots = nil
				if by != "pod" { // sums of several nodes
					row.Node, row.Addresses = "", []string{}
				}
				names := make(map[string]float64)
				if top := row.TopName; top != nil {
					names[top.Name] = top.Share * float64(row.Window.Queries)
				}
				m.add(mergedClient{row, names})
			}
			// No further counts are added to rows of pods, so the lowest rows can be dropped.
			if by == "pod" && len(m.rows) > 2*shownRows {
				r.More += len(m.keep(shownRows))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	r.More += len(m.keep(shownRows))
	for i := range m.rows {
		row := &m.rows[i]
		row.Share = 0
		if r.Total.Queries > 0 {
			row.Share = float64(row.Window.Queries) / float64(r.Total.Queries)
		}
		row.TopName = topName(row.names, row.Window.Queries)
		r.Clients = append(r.Clients, row.ClusterClient)
	}
	return r, nil
}

// ClientRows returns the clients of a node as rows of several.
func ClientRows(node string, c *report.Clients) []report.ClusterClient {
	rows := make([]report.ClusterClient, len(c.Clients))
	for i, client := range c.Clients {
		rows[i] = report.ClusterClient{Node: node, Nodes: 1, UpstreamPerSecond: report.PerSecond(client.Window.Upstream, c.WindowSeconds), Client: client}
	}
	return rows
}

func keyOfClient(c *mergedClient) clientKey {
	key := clientKey{node: c.Node, kind: c.Kind, namespace: c.Namespace, workloadKind: c.WorkloadKind, workload: c.Workload, pod: c.Pod}
	if c.Kind == "unknown" && len(c.Addresses) > 0 {
		key.address = c.Addresses[0]
	}
	return key
}

// mergeClients adds c to total.
func mergeClients(total, c *mergedClient) {
	total.Nodes += c.Nodes
	total.IPv4Only = total.IPv4Only && c.IPv4Only
	total.QueriesPerSecond += c.QueriesPerSecond
	total.UpstreamPerSecond += c.UpstreamPerSecond
	total.P50Seconds, total.P99Seconds = max(total.P50Seconds, c.P50Seconds), max(total.P99Seconds, c.P99Seconds)
	total.Unfollowed, total.UnfollowedCapped = total.Unfollowed+c.Unfollowed, total.UnfollowedCapped+c.UnfollowedCapped
	total.Window, total.Total = sum(total.Window, c.Window), sum(total.Total, c.Total)
	for name, queries := range c.names {
		total.names[name] += queries
	}
}

func compareClients(x, y *mergedClient) int {
	a, b := keyOfClient(x), keyOfClient(y)
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.workload, b.workload), cmp.Compare(a.pod, b.pod),
		cmp.Compare(a.kind, b.kind), cmp.Compare(a.node, b.node), cmp.Compare(a.address, b.address), cmp.Compare(a.workloadKind, b.workloadKind))
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
		TCP: a.TCP + b.TCP, Truncated: a.Truncated + b.Truncated, AAAA: a.AAAA + b.AAAA, AAAAUpstream: a.AAAAUpstream + b.AAAAUpstream, Limited: a.Limited + b.Limited,
	}
}
