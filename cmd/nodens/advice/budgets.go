package advice

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// The changes of a Corefile that relieve a budget.
const (
	longerTTLText   = "success 9984 3600 60 in the body of cache; the last number is the least TTL in seconds"
	serveStaleText  = "serve_stale in the body of cache"
	clientLimitText = "client_limit QPS in the server block, or --client-limit QPS"
)

// leastPart is the part of a workload's upstream queries from which on a change that concerns them is advised.
const leastPart = 0.1

// Budgets returns the budgets of u that are used so much that there is advice about them. clients, names, waste and
// workloads are of the same agent and window: its clients by workload, names by client, wasted names, and the advice about
// them.
func Budgets(u *report.Upstreams, clients *report.Clients, names, waste *report.Names, workloads []report.AdvisedWorkload) []report.AdvisedBudget {
	list := []report.AdvisedBudget{}
	top := newTopClient(u, clients, names, waste, workloads)
	for _, to := range u.Servers() {
		b := to.Budget
		if b == nil || b.LimitPerSecond == 0 {
			continue
		}
		used := max(b.UsedShare, to.Recent.PerSecond/b.LimitPerSecond)
		if used < report.LeastBudgetUse && b.Waiting == 0 {
			continue
		}
		advised := report.AdvisedBudget{To: to.To, LimitPerSecond: b.LimitPerSecond, Auto: b.Auto, UsedShare: used, Waiting: b.Waiting, Relief: []report.Relief{}}
		if top != nil {
			advised.Top, advised.Relief = &top.shown, top.relief(to.To, u)
		}
		list = append(list, advised)
	}
	slices.SortStableFunc(list, func(a, b report.AdvisedBudget) int { return CompareBudgets(&a, &b) })
	return list
}

// CompareBudgets orders budgets, the one with the highest use first.
func CompareBudgets(a, b *report.AdvisedBudget) int {
	return cmp.Or(cmp.Compare(b.UsedShare, a.UsedShare), cmp.Compare(a.To, b.To))
}

// topClient is the client that asks upstreams most.
type topClient struct {
	*report.Client
	shown    report.UpstreamClient
	workload *report.AdvisedWorkload // the advice about it; nil without search waste
	names    []*report.Name          // that it asks for most
	waste    float64                 // queries for wasted names that leave the node if they are not cached
}

// newTopClient returns the client with the most queries for which an upstream was asked, nil for none.
func newTopClient(u *report.Upstreams, clients *report.Clients, names, waste *report.Names, workloads []report.AdvisedWorkload) *topClient {
	t := new(topClient)
	for i := range clients.Clients {
		if c := &clients.Clients[i]; c.Window.Upstream > 0 && (t.Client == nil || c.Window.Upstream > t.Window.Upstream) {
			t.Client = c
		}
	}
	if t.Client == nil {
		return nil
	}
	id := idOf(t.Client)
	t.shown = report.UpstreamClient{
		WorkloadID: id, UpstreamPerSecond: report.PerSecond(t.Window.Upstream, clients.WindowSeconds),
		Share: float64(t.Window.Upstream) / float64(max(clients.Total.Upstream, t.Window.Upstream)),
	}
	for i := range workloads {
		if w := &workloads[i]; id == (report.WorkloadID{Kind: "pod", Namespace: w.Namespace, WorkloadKind: w.WorkloadKind, Workload: w.Workload}) {
			t.workload = w
		}
	}
	viewed := slices.ContainsFunc(u.Forwards, func(f report.Forward) bool { return slices.Contains(f.Directives, "kubernetes") })
	s := newSplitter(clients, waste)
	for i := range names.Names {
		if n := &names.Names[i]; idOfName(n) == id {
			t.names = append(t.names, n)
			t.waste += s.wasteUpstream(n, viewed)
		}
	}
	return t
}

// relief returns the changes that relieve the budget of an upstream, those that save queries first.
func (t *topClient) relief(to string, u *report.Upstreams) []report.Relief {
	list := t.ofWaste()
	repeated, unique := t.repeats()
	if repeated >= leastPart {
		list = append(list, report.Relief{Kind: report.ReliefLongerTTL, Text: longerTTLText,
			Reason: fmt.Sprintf("at least %.0f%% of its upstream queries are for names that it asked for before", 100*repeated)})
	}
	lacksStale := func(f report.Forward) bool {
		return slices.Contains(f.Directives, "cache") && !f.ServeStale && slices.ContainsFunc(f.Upstreams, func(up report.Upstream) bool { return up.To == to })
	}
	if slices.ContainsFunc(u.Forwards, lacksStale) {
		list = append(list, report.Relief{Kind: report.ReliefServeStale, Text: serveStaleText,
			Reason: "a query that would have to wait then gets the expired answer"})
	}
	if unique >= 0.5 {
		list = append(list, report.Relief{Kind: report.ReliefClientLimit, Text: clientLimitText,
			Reason: fmt.Sprintf("at least %.0f%% of its upstream queries are for names that it asks for rarely", 100*unique)})
	}
	return list
}

// ofWaste returns the change that stops the search waste for which upstreams are asked: names below the search domains
// of the node, and also below the cluster's if no server block has a view of the cluster. autopath does not: it asks for
// the same names.
func (t *topClient) ofWaste() []report.Relief {
	list := []report.Relief{}
	if t.workload == nil || t.waste < leastPart*float64(t.Window.Upstream) {
		return list
	}
	for _, c := range t.workload.Changes {
		if c.Kind == report.ChangeNdots {
			list = append(list, report.Relief{Kind: c.Kind, Text: c.Text,
				Reason: fmt.Sprintf("its search path makes %.0f queries for names that only upstreams can deny, of %d upstream queries", t.waste, t.Window.Upstream)})
		}
	}
	return list
}

// wasteUpstream returns how many of the queries for n, if it is a name that only a search path makes, leave the node unless they
// are cached. viewed says that a server block has a view of the cluster.
func (s *splitter) wasteUpstream(n *report.Name, viewed bool) float64 {
	_, parent, _ := strings.Cut(n.Name, ".")
	if _, place, _ := s.split(parent); !s.wasted[parent] || place != underNode && viewed {
		return 0
	}
	return minQueries(n)
}

// repeats returns the parts of the client's upstream queries that are at least for names that it asks for again and
// again, and for names that it asks for rarely. Both are bounds, because hits and misses are not counted by name: queries
// beyond those for rare names are for the frequent ones, each of which was new once for each of two types, and queries
// beyond those for frequent names are for rare ones.
func (t *topClient) repeats() (repeated, unique float64) {
	const typesOfName = 2 // A and AAAA
	var least, most float64
	for _, n := range t.names {
		least += minQueries(n)
		most += float64(n.Queries)
	}
	queries, upstream := float64(t.Window.Queries), float64(t.Window.Upstream)
	repeated = upstream - max(0, queries-least) - typesOfName*float64(len(t.names))
	return max(0, repeated) / upstream, max(0, upstream-most) / upstream
}
