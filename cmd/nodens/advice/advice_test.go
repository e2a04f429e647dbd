package advice_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/internal/report"
)

// node is what an agent has counted in 100 seconds.
type node struct {
	clients      report.Clients
	names, waste report.Names
}

// workload adds a Deployment with so many queries.
func (n *node) workload(namespace, name string, queries, waste uint64) {
	n.clients.WindowSeconds = 100
	n.clients.Clients = append(n.clients.Clients, report.Client{
		Kind: "pod", Namespace: namespace, WorkloadKind: "Deployment", Workload: name, QueriesPerSecond: float64(queries) / 100,
		Window: report.ClientCounts{Queries: queries, Waste: waste},
	})
}

// asks adds rows for queries of a workload: for each of the names, and for the parents of those that are wasted.
func (n *node) asks(namespace, name string, queries uint64, wasted ...string) {
	client := &report.NameClient{Kind: "pod", Namespace: namespace, WorkloadKind: "Deployment", Workload: name}
	for _, w := range wasted {
		n.names.Names = append(n.names.Names, report.Name{Name: w, Client: client, Queries: queries})
		n.wastes(queries, w)
	}
}

// wastes adds to the row for the parent of wasted names.
func (n *node) wastes(queries uint64, name string) {
	_, parent, _ := strings.Cut(name, ".")
	for i := range n.waste.Names {
		if n.waste.Names[i].Name == parent {
			n.waste.Names[i].Queries += queries
			return
		}
	}
	n.waste.Names = append(n.waste.Names, report.Name{Name: parent, Queries: queries})
}

// search returns the names that the search path of a pod makes of name.
func search(name, namespace, domain string, places int) []string {
	return []string{name + "." + namespace + ".svc." + domain, name + ".svc." + domain, name + "." + domain, name + ".node.internal."}[:places]
}

// text is the advice in lines.
func text(a *report.Advice) string {
	var b strings.Builder
	for _, w := range a.Workloads {
		fmt.Fprintf(&b, "%s/%s %d/%d %s\n", w.Namespace, w.Workload, w.Waste, w.Queries, w.NamesOf)
		for _, n := range w.Names {
			fmt.Fprintf(&b, "  %s external=%v %d, %d wasted\n", n.Name, n.External, n.Lookups, n.Waste)
		}
		for _, c := range w.Changes {
			fmt.Fprintf(&b, "  %s: %s: %d, %.2f/s, %.0f%%\n", c.Kind, c.Text, c.Saved, c.SavedPerSecond, 100*c.SavedShare)
		}
	}
	for _, c := range a.Changes {
		fmt.Fprintf(&b, "%s: %s: %d, %.2f/s, %.0f%%\n", c.Kind, c.Text, c.Saved, c.SavedPerSecond, 100*c.SavedShare)
	}
	return b.String()
}

// TestAdvice: which changes follow from which names.
func TestAdvice(t *testing.T) {
	const domain = "cluster.local."
	for name, c := range map[string]struct {
		count func(*node)
		want  string
	}{
		"nothing is counted": {func(*node) {}, ""},
		"little waste": {func(n *node) {
			n.workload("shop", "web", 1000, 49)
			n.asks("shop", "web", 10, search("www.example.com", "shop", domain, 3)...)
		}, ""},
		"a name outside of the cluster": {func(n *node) {
			n.workload("shop", "web", 500, 300)
			n.asks("shop", "web", 100, search("www.example.com", "shop", domain, 3)...)
			n.workload("shop", "db", 500, 0)
		}, `shop/web 300/500 workload
  www.example.com external=true 100, 300 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 300, 3.00/s, 60%
  trailing dot: www.example.com.: 300, 3.00/s, 60%
autopath: autopath @kubernetes: 300, 3.00/s, 30%
`},
		"another cluster domain, and a search domain of the node": {func(n *node) {
			n.workload("shop", "web", 500, 400)
			n.asks("shop", "web", 100, search("a.example.com", "shop", "corp.example.", 4)...)
		}, `shop/web 400/500 workload
  a.example.com external=true 100, 400 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 400, 4.00/s, 80%
  trailing dot: a.example.com.: 400, 4.00/s, 80%
autopath: autopath @kubernetes: 400, 4.00/s, 80%
`},
		"Services of other namespaces keep ndots above their dots": {func(n *node) {
			n.workload("shop", "web", 1000, 420)
			n.workload("data", "db", 10, 0)
			n.asks("shop", "web", 100, search("www.example.com", "shop", domain, 3)...)
			n.asks("shop", "web", 60, search("example.org", "shop", domain, 3)[:1]...)
			n.asks("shop", "web", 60, search("db.data", "shop", domain, 1)...)
		}, `shop/web 420/1000 workload
  www.example.com external=true 100, 300 wasted
  db.data external=false 60, 60 wasted
  example.org external=false 60, 60 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 300, 3.00/s, 30%
  trailing dot: www.example.com.: 300, 3.00/s, 30%
autopath: autopath @kubernetes: 420, 4.20/s, 42%
`},
		"pods that ask for names with two dots first": {func(n *node) {
			n.workload("shop", "web", 500, 300)
			n.asks("shop", "web", 100, search("www.example.com", "shop", domain, 3)...)
			two := 2
			n.clients.Clients[0].Ndots = &two
		}, `shop/web 300/500 workload
  www.example.com external=true 100, 300 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "1"}]}: 300, 3.00/s, 60%
  trailing dot: www.example.com.: 300, 3.00/s, 60%
autopath: autopath @kubernetes: 300, 3.00/s, 60%
`},
		"names with one dot": {func(n *node) {
			n.workload("shop", "web", 400, 300)
			n.asks("shop", "web", 100, search("example.com", "shop", domain, 3)...)
		}, `shop/web 300/400 workload
  example.com external=true 100, 300 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "1"}]}: 300, 3.00/s, 75%
  trailing dot: example.com.: 300, 3.00/s, 75%
autopath: autopath @kubernetes: 300, 3.00/s, 75%
`},
		"each name is asked for once": {func(n *node) {
			n.workload("shop", "web", 1200, 900)
			n.workload("shop", "db", 1200, 300)
			n.workload("test", "load", 800, 600)
			for range 400 {
				for _, w := range search("x.example.com", "shop", domain, 3) {
					n.wastes(1, w)
				}
			}
			for range 200 {
				for _, w := range search("x.example.com", "test", domain, 3) {
					n.wastes(1, w)
				}
			}
		}, `shop/web 900/1200 namespace
  *.example.com external=true 300, 900 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 900, 9.00/s, 75%
  trailing dot: *.example.com.: 900, 9.00/s, 75%
test/load 600/800 namespace
  *.example.com external=true 200, 600 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 600, 6.00/s, 75%
  trailing dot: *.example.com.: 600, 6.00/s, 75%
shop/db 300/1200 namespace
  *.example.com external=true 100, 300 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 300, 3.00/s, 25%
  trailing dot: *.example.com.: 300, 3.00/s, 25%
autopath: autopath @kubernetes: 1800, 18.00/s, 56%
`},
		"counts of names that are too high": {func(n *node) {
			n.workload("shop", "web", 500, 300)
			n.asks("shop", "web", 200, search("www.example.com", "shop", domain, 3)...)
			for i := range n.names.Names {
				n.names.Names[i].Error = 50
			}
		}, `shop/web 300/500 workload
  www.example.com external=true 100, 300 wasted
  ndots: dnsConfig: {options: [{name: ndots, value: "2"}]}: 300, 3.00/s, 60%
  trailing dot: www.example.com.: 300, 3.00/s, 60%
autopath: autopath @kubernetes: 300, 3.00/s, 60%
`},
		"no name is known": {func(n *node) {
			n.workload("shop", "web", 500, 300)
			n.wastes(10, "a.b.node.internal.")
			n.wastes(10, "a.svc.cluster.local.")
			n.wastes(10, "svc.cluster.local.")
		}, `shop/web 300/500 
autopath: autopath @kubernetes: 300, 3.00/s, 60%
`},
	} {
		t.Run(name, func(t *testing.T) {
			var n node
			c.count(&n)
			a := advice.Of(&n.clients, &n.names, &n.waste)
			if d := cmp.Diff(c.want, text(a)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			for _, w := range a.Workloads {
				for _, c := range w.Changes {
					if c.Saved > w.Waste {
						t.Errorf("%s saves %d of %d", c.Text, c.Saved, w.Waste)
					}
				}
			}
		})
	}
}
