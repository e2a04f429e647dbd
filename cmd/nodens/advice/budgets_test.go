package advice_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/internal/report"
)

// forwards adds a forward directive to an upstream with a budget, in a block with these directives.
func forwards(u *report.Upstreams, to string, budget *report.Budget, perSecond float64, directives ...string) {
	u.Forwards = append(u.Forwards, report.Forward{From: ".", Directives: directives, Upstreams: []report.Upstream{{To: to, Budget: budget, Recent: report.Exchanges{PerSecond: perSecond}}}})
}

// budgetText is the advice in lines.
func budgetText(list []report.AdvisedBudget) string {
	var b strings.Builder
	for _, x := range list {
		fmt.Fprintf(&b, "%s %.0f%%", x.To, 100*x.UsedShare)
		if t := x.Top; t != nil {
			fmt.Fprintf(&b, " %s %.1f/s %.0f%%", t.Label(), t.UpstreamPerSecond, 100*t.Share)
		}
		b.WriteString("\n")
		for _, r := range x.Relief {
			fmt.Fprintf(&b, "  %s: %s\n", r.Kind, r.Reason)
		}
	}
	return b.String()
}

// asks1000 is a node on which one Deployment asks upstreams for 900 of its 1,000 queries, another for 100.
func asks1000() *node {
	n := new(node)
	n.workload("shop", "web", 1000, 0)
	n.workload("shop", "db", 500, 0)
	n.clients.Clients[0].Window.Upstream, n.clients.Clients[1].Window.Upstream = 900, 100
	n.clients.Total.Upstream = 1000
	return n
}

// TestBudgets: who uses a budget most, and what relieves it.
func TestBudgets(t *testing.T) {
	used := &report.Budget{LimitPerSecond: 10, UsedShare: 0.9}
	const web, fewer = "10.0.0.1:53 90% shop/web 9.0/s 90%\n", "10.0.0.1:53 90% shop/web 6.0/s 86%\n"
	for name, c := range map[string]struct {
		make func(*node, *report.Upstreams)
		want string
	}{
		"no budget":          {func(_ *node, u *report.Upstreams) { forwards(u, "10.0.0.1:53", nil, 1000) }, ""},
		"a budget to spare":  {func(_ *node, u *report.Upstreams) { forwards(u, "10.0.0.1:53", &report.Budget{LimitPerSecond: 10}, 4) }, ""},
		"auto, no limit yet": {func(_ *node, u *report.Upstreams) { forwards(u, "10.0.0.1:53", &report.Budget{Auto: true}, 4000) }, ""},
		"nobody asks": {func(n *node, u *report.Upstreams) {
			n.clients = report.Clients{}
			forwards(u, "10.0.0.1:53", used, 0)
		}, "10.0.0.1:53 90%\n"},
		"used in the last minute, and queries that wait": {func(_ *node, u *report.Upstreams) {
			forwards(u, "10.0.0.1:53", &report.Budget{LimitPerSecond: 10, Waiting: 1}, 0, "forward")
			forwards(u, "10.0.0.2:53", &report.Budget{LimitPerSecond: 10}, 6, "forward")
		}, "10.0.0.2:53 60% shop/web 9.0/s 90%\n  client_limit: at least 100% of its upstream queries are for names that it asks for rarely\n" +
			"10.0.0.1:53 0% shop/web 9.0/s 90%\n  client_limit: at least 100% of its upstream queries are for names that it asks for rarely\n"},
		"new names, and a cache without expired answers": {func(n *node, u *report.Upstreams) {
			n.names.Names = append(n.names.Names, report.Name{Name: "a.example.com.", Client: &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web"}, Queries: 90})
			forwards(u, "10.0.0.1:53", used, 1, "cache", "forward")
		}, web + "  serve_stale: a query that would have to wait then gets the expired answer\n" +
			"  client_limit: at least 90% of its upstream queries are for names that it asks for rarely\n"},
		"the same names again and again": {func(n *node, u *report.Upstreams) {
			n.names.Names = append(n.names.Names, report.Name{Name: "a.example.com.", Client: &report.NameClient{Kind: "pod", Namespace: "shop", WorkloadKind: "Deployment", Workload: "web"}, Queries: 1000, Error: 98})
			forwards(u, "10.0.0.1:53", used, 1, "cache", "forward")
			u.Forwards[0].ServeStale = true
		}, web + "  longer TTL: at least 89% of its upstream queries are for names that it asked for before\n"},
		"search domains of the node": {func(n *node, u *report.Upstreams) {
			n.clients.Clients[0].Window.Waste, n.clients.Clients[0].Window.Upstream, n.clients.Total.Upstream = 400, 600, 700
			n.asks("shop", "web", 100, search("www.example.com", "shop", "cluster.local.", 4)...)
			forwards(u, "10.0.0.1:53", used, 1, "kubernetes", "forward")
		}, fewer + "  ndots: its search path makes 100 queries for names that only upstreams can deny, of 600 upstream queries\n"},
		"a search path that the agent answers": {func(n *node, u *report.Upstreams) {
			n.clients.Clients[0].Window.Waste, n.clients.Clients[0].Window.Upstream, n.clients.Total.Upstream = 300, 600, 700
			n.asks("shop", "web", 100, search("www.example.com", "shop", "cluster.local.", 3)...)
			forwards(u, "10.0.0.1:53", used, 1, "kubernetes", "forward")
		}, fewer + "  client_limit: at least 50% of its upstream queries are for names that it asks for rarely\n"},
		"a cluster without a view": {func(n *node, u *report.Upstreams) {
			n.clients.Clients[0].Window.Waste, n.clients.Clients[0].Window.Upstream, n.clients.Total.Upstream = 300, 600, 700
			n.asks("shop", "web", 100, search("www.example.com", "shop", "cluster.local.", 3)...)
			forwards(u, "10.0.0.1:53", used, 1, "forward")
		}, fewer + "  ndots: its search path makes 300 queries for names that only upstreams can deny, of 600 upstream queries\n" +
			"  client_limit: at least 50% of its upstream queries are for names that it asks for rarely\n"},
		"the node itself": {func(n *node, u *report.Upstreams) {
			n.clients.Clients = append(n.clients.Clients, report.Client{Kind: "host", Window: report.ClientCounts{Queries: 3000, Upstream: 3000}})
			n.clients.Total.Upstream = 4000
			forwards(u, "10.0.0.1:53", used, 1, "forward")
		}, "10.0.0.1:53 90% (host) 30.0/s 75%\n  client_limit: at least 100% of its upstream queries are for names that it asks for rarely\n"},
	} {
		t.Run(name, func(t *testing.T) {
			n, u := asks1000(), new(report.Upstreams)
			c.make(n, u)
			a := advice.Of(&n.clients, &n.names, &n.waste)
			if d := cmp.Diff(c.want, budgetText(advice.Budgets(u, &n.clients, &n.names, &n.waste, a.Workloads))); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}
