package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/report"
)

// clientOrders are the values of --sort: what is compared, the highest first.
var clientOrders = map[string]func(*report.Client) float64{
	"queries":  func(c *report.Client) float64 { return float64(c.Window.Queries) },
	"nxdomain": func(c *report.Client) float64 { return float64(c.Window.NXDomain) },
	"waste":    func(c *report.Client) float64 { return float64(c.Window.Waste) },
	"servfail": func(c *report.Client) float64 { return float64(c.Window.Servfail) },
	"upstream": func(c *report.Client) float64 { return float64(c.Window.Upstream) },
	"p99":      func(c *report.Client) float64 { return c.P99Seconds },
	"shed":     func(c *report.Client) float64 { return float64(c.Window.Shed) },
	"limited":  func(c *report.Client) float64 { return float64(c.Window.Limited) },
}

// askClients asks for the table by pod, workload or namespace.
func askClients(ctx context.Context, f *topFlags) (*topTable, error) {
	order := clientOrders[f.sort]
	if f.cluster != nil {
		c, err := kubectl.Clients(ctx, f.cluster, f.by, f.window, order)
		if err != nil {
			return nil, err
		}
		return clientTable(f, c, c, fmt.Sprintf("%s: %.1f queries/s", nodesText(c.Nodes), c.QueriesPerSecond)), nil
	}
	c := new(report.Clients)
	if err := f.socket.ask(ctx, http.MethodGet, "/clients", url.Values{"by": {f.by}, "window": {f.window}}, c); err != nil {
		return nil, err
	}
	slices.SortStableFunc(c.Clients, func(a, b report.Client) int { return cmp.Compare(order(&b), order(&a)) })
	head := fmt.Sprintf("node %s: %.1f queries/s in the last %.0f s, from %d addresses (limit %d)",
		cmp.Or(c.Node, "unknown"), report.PerSecond(c.Total.Queries, c.WindowSeconds), c.WindowSeconds, c.Addresses, c.AddressLimit)
	if c.Refused > 0 {
		head += fmt.Sprintf("; about %d others are (other)", c.Refused)
	}
	one := &report.ClusterClients{Cluster: report.Cluster{Nodes: 1}, By: c.By, Clients: kubectl.ClientRows(c.Node, c), More: c.More, Total: c.Total}
	return clientTable(f, c, one, head), nil
}

// clientTable returns the table of c.
func clientTable(f *topFlags, reply any, c *report.ClusterClients, head string) *topTable {
	rows := firstRows(c.Clients, f.rows)
	t := &topTable{reply: reply, cluster: c.Cluster, head: head, cells: cells(clientColumns(f, c), rows), more: len(c.Clients) - len(rows) + c.More}
	t.gone = fit(t.cells, f.width)
	return t
}

// clientColumns returns the columns of clients: LIMITED only if a client is limited, NO-TCP only if one gets truncated replies
// and never asks over TCP.
func clientColumns(f *topFlags, c *report.ClusterClients) []column[report.ClusterClient] {
	type row = report.ClusterClient
	share := func(name string, part func(*report.ClientCounts) uint64) column[row] {
		return column[row]{name, func(r *row) string {
			if r.Window.Queries == 0 {
				return "-"
			}
			return percent(float64(part(&r.Window)) / float64(r.Window.Queries))
		}}
	}
	several, byPod := f.cluster != nil, c.By == "pod"
	unfollowed := slices.ContainsFunc(c.Clients, func(r row) bool { return r.Unfollowed > 0 })
	return slices.Concat(
		when(several && byPod, column[row]{"NODE", func(r *row) string { return r.Node }}),
		[]column[row]{{strings.ToUpper(c.By), func(r *row) string { return r.Label(c.By) }}},
		when(several && !byPod, column[row]{"NODES", func(r *row) string { return fmt.Sprint(r.Nodes) }}),
		[]column[row]{
			{"QPS", func(r *row) string { return tenths(r.QueriesPerSecond) }},
			{"SHARE", func(r *row) string { return percent(r.Share) }},
			share("HIT", func(n *report.ClientCounts) uint64 { return n.Hits }),
			share("KERNEL", func(n *report.ClientCounts) uint64 { return n.Kernel }),
			share("NXDOMAIN", func(n *report.ClientCounts) uint64 { return n.NXDomain }),
			share("WASTE", func(n *report.ClientCounts) uint64 { return n.Waste }),
			share("SERVFAIL", func(n *report.ClientCounts) uint64 { return n.Servfail }),
			{"UPSTREAM/s", func(r *row) string { return tenths(r.UpstreamPerSecond) }},
			{"P50", func(r *row) string { return latency(r.P50Seconds) }},
			{"P99", func(r *row) string { return latency(r.P99Seconds) }},
			{"SHED", func(r *row) string { return fmt.Sprint(r.Window.Shed) }},
		},
		when(c.Total.Limited > 0, column[row]{"LIMITED", func(r *row) string { return fmt.Sprint(r.Window.Limited) }}),
		when(unfollowed, column[row]{"NO-TCP", func(r *row) string { return fmt.Sprint(r.Unfollowed) }}),
		[]column[row]{{"TOP-NAME", func(r *row) string {
			if r.TopName == nil {
				return "-"
			}
			return r.TopName.Name + " " + percent(r.TopName.Share)
		}}},
		when(f.output.Wide(),
			column[row]{"SLOW", func(r *row) string { return fmt.Sprint(r.Window.Slow) }},
			column[row]{"QUERIES", func(r *row) string { return fmt.Sprint(r.Window.Queries) }},
			column[row]{"TOTAL", func(r *row) string { return fmt.Sprint(r.Total.Queries) }},
			column[row]{"WORKLOAD", func(r *row) string { return cmp.Or(strings.Trim(r.WorkloadKind+"/"+r.Workload, "/"), "-") }},
			column[row]{"ADDRESSES", func(r *row) string { return cmp.Or(strings.Join(r.Addresses, ","), "-") }},
		),
	)
}
