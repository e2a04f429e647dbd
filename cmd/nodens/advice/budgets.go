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
	top := topUpstreamClient(clients)
	viewed := slices.ContainsFunc(u.Forwards, func(f report.Forward) bool { return slices.Contains(f.Directives, "kubernetes") })
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
			f := facts{client: top, names: namesOf(top, names), blocks: blocksOf(to.To, u), workload: adviceOf(top, workloads)}
			f.waste = newSplitter(clients, waste).wasteUpstream(f.names, viewed)
			advised.Top, advised.Relief = f.upstreamClient(clients), f.relief()
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

// topUpstreamClient returns the client with the most queries for which an upstream was asked, nil for none.
func topUpstreamClient(clients *report.Clients) (top *report.Client) {
	for i := range clients.Clients {
		if c := &clients.Clients[i]; c.Window.Upstream > 0 && (top == nil || c.Window.Upstream > top.Window.Upstream) {
			top = c
		}
	}
	return top
}

// facts are what the relief of a budget depends on.
type facts struct {
	client   *report.Client
	workload *report.AdvisedWorkload // nil without search waste
	names    []*report.Name          // that client asks for most
	blocks   []*report.Forward       // that forward to the upstream
	waste    float64                 // queries for wasted names that leave the node if they are not cached
}

// namesOf returns the rows of names that are about client.
func namesOf(client *report.Client, names *report.Names) (list []*report.Name) {
	for i := range names.Names {
		if idOfName(&names.Names[i]) == idOf(client) {
			list = append(list, &names.Names[i])
		}
	}
	return list
}

// blocksOf returns the forward directives with the upstream.
func blocksOf(to string, u *report.Upstreams) (list []*report.Forward) {
	for i := range u.Forwards {
		f := &u.Forwards[i]
		if slices.ContainsFunc(f.Upstreams, func(up report.Upstream) bool { return up.To == to }) {
			list = append(list, f)
		}
	}
	return list
}

// adviceOf returns the advice about a client, nil for none.
func adviceOf(client *report.Client, workloads []report.AdvisedWorkload) *report.AdvisedWorkload {
	for i := range workloads {
		w := &workloads[i]
		if (report.WorkloadID{Kind: "pod", Namespace: w.Namespace, WorkloadKind: w.WorkloadKind, Workload: w.Workload}) == idOf(client) {
			return w
		}
	}
	return nil
}

// upstreamClient returns the client with its part in the upstream queries of all clients.
func (f *facts) upstreamClient(all *report.Clients) *report.UpstreamClient {
	c := f.client
	out := &report.UpstreamClient{WorkloadID: idOf(c), UpstreamPerSecond: report.PerSecond(c.Window.Upstream, all.WindowSeconds)}
	if sum := max(all.Total.Upstream, c.Window.Upstream); sum > 0 {
		out.Share = float64(c.Window.Upstream) / float64(sum)
	}
	return out
}

// relief returns the changes that relieve the budget, those that save queries first.
func (f *facts) relief() []report.Relief {
	list := f.ofWaste()
	repeated, unique := f.repeats()
	if repeated >= leastPart {
		list = append(list, report.Relief{Kind: report.ReliefLongerTTL, Text: longerTTLText,
			Reason: fmt.Sprintf("at least %.0f%% of its upstream queries are for names that it asked for before", 100*repeated)})
	}
	if f.lacksStale() {
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
func (f *facts) ofWaste() []report.Relief {
	list := []report.Relief{}
	part := f.waste / float64(f.client.Window.Upstream)
	if f.workload == nil || part < leastPart {
		return list
	}
	for _, c := range f.workload.Changes {
		if c.Kind == report.ChangeNdots {
			list = append(list, report.Relief{Kind: c.Kind, Text: c.Text,
				Reason: fmt.Sprintf("its search path makes %.0f queries for names that only upstreams can deny, of %d upstream queries", f.waste, f.client.Window.Upstream)})
		}
	}
	return list
}

// wasteUpstream returns how many of the queries for names that only the search path of a client makes leave the node if
// they are not cached. viewed says that a server block has a view of the cluster.
func (s *splitter) wasteUpstream(names []*report.Name, viewed bool) (sum float64) {
	for _, n := range names {
		_, parent, _ := strings.Cut(n.Name, ".")
		if !s.wasted[parent] {
			continue
		}
		if _, place, _ := s.split(parent); place == underNode || !viewed {
			sum += minQueries(n)
		}
	}
	return sum
}

// repeats returns the parts of the client's upstream queries that are at least for names that it asks for again and
// again, and for names that it asks for rarely. Both are bounds, because hits and misses are not counted by name: queries
// beyond those for rare names are for the frequent ones, each of which was new once for each of two types, and queries
// beyond those for frequent names are for rare ones.
func (f *facts) repeats() (repeated, unique float64) {
	const typesOfName = 2 // A and AAAA
	var least, most float64
	for _, n := range f.names {
		least += minQueries(n)
		most += float64(n.Queries)
	}
	queries, upstream := float64(f.client.Window.Queries), float64(f.client.Window.Upstream)
	repeated = upstream - max(0, queries-least) - typesOfName*float64(len(f.names))
	return max(0, repeated) / upstream, max(0, upstream-most) / upstream
}

// lacksStale reports whether a server block that forwards to the upstream has a cache without serve_stale.
func (f *facts) lacksStale() bool {
	return slices.ContainsFunc(f.blocks, func(b *report.Forward) bool { return slices.Contains(b.Directives, "cache") && !b.ServeStale })
}
