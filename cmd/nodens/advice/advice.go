// Package advice finds the changes that stop search waste: queries for names that only the search path
// of a pod's resolver makes.
//
// The counts of queries and of waste by workload are exact. The wasted names come from the sketches of names,
// whose rows are the most frequent names: first from the workload's own rows; if these explain less than half of
// its waste, for example because each name is asked for once, from the parents of wasted names in its
// namespace. A change saves the waste of the names that it concerns, so names without a row make the saving
// too low, never too high.
package advice

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// The values of [report.AdvisedWorkload.NamesOf].
const (
	namesOfWorkload  = "workload"
	namesOfNamespace = "namespace"
)

// Of returns the advice that follows from an agent's replies: its clients by workload, names by client, and
// wasted names, all of the same window.
func Of(clients *report.Clients, names, waste *report.Names) *report.Advice {
	a := &report.Advice{Header: clients.Header, Window: clients.Window, WindowSeconds: clients.WindowSeconds, SinceSeconds: clients.SinceSeconds}
	s := newSplitter(clients, waste)
	byWorkload, byNamespace, wasteOf := s.ofWorkloads(names), s.ofNamespaces(waste), make(map[string]uint64)
	for i := range clients.Clients {
		if c := &clients.Clients[i]; c.Kind == "pod" {
			addClient(&a.AdviceCounts, c)
			wasteOf[c.Namespace] += c.Window.Waste
		}
	}
	for i := range clients.Clients {
		c := &clients.Clients[i]
		if c.Kind != "pod" || c.Window.Queries == 0 {
			continue
		}
		w := report.AdvisedWorkload{
			Namespace: c.Namespace, WorkloadKind: c.WorkloadKind, Workload: c.Workload,
			Queries: c.Window.Queries, Waste: c.Window.Waste, QueriesPerSecond: c.QueriesPerSecond, Ndots: c.Ndots, Names: []report.WastedName{},
		}
		own, wasted := byWorkload[idOf(c)], float64(w.Waste)
		ofNamespace := byNamespace[c.Namespace]
		switch total := own.total(); {
		case total > 0 && total >= wasted/2:
			w.NamesOf, w.Names = namesOfWorkload, own.names(min(1, wasted/total))
		case ofNamespace.total() > 0 && w.Waste > 0:
			part := wasted / float64(wasteOf[c.Namespace])
			w.NamesOf, w.Names = namesOfNamespace, ofNamespace.names(min(part, wasted/ofNamespace.total()))
		}
		a.Workloads = append(a.Workloads, w)
	}
	a.Truncated = truncated(clients)
	Complete(&a.AdviceCounts)
	return a
}

// addClient adds the queries of a workload to a.
func addClient(a *report.AdviceCounts, c *report.Client) {
	a.Queries += c.Window.Queries
	a.Waste += c.Window.Waste
	a.QueriesPerSecond += c.QueriesPerSecond
	if c.IPv4Only {
		a.UnusableAAAA += c.Window.AAAA
		a.UnusableUpstream += c.Window.AAAAUpstream
	}
}

// Complete keeps the workloads with a share of waste of [report.LeastWaste] or more, and sets the shares, the changes and the
// remedies of a, from its counts. No two rows of a are about the same client, except of Bypasses, which it adds up.
func Complete(a *report.AdviceCounts) {
	kept := []report.AdvisedWorkload{}
	for i := range a.Workloads {
		w := &a.Workloads[i]
		if w.Queries == 0 || float64(w.Waste) < report.LeastWaste*float64(w.Queries) {
			continue
		}
		w.WasteShare = float64(w.Waste) / float64(w.Queries)
		w.Changes = changes(w)
		kept = append(kept, *w)
	}
	slices.SortFunc(kept, func(x, y report.AdvisedWorkload) int {
		return cmp.Or(cmp.Compare(y.Waste, x.Waste), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Workload, y.Workload), cmp.Compare(x.WorkloadKind, y.WorkloadKind))
	})
	for i := range a.Truncated {
		a.Truncated[i].Remedies = remedies(&a.Truncated[i])
	}
	slices.SortFunc(a.Truncated, func(x, y report.TruncatedClient) int {
		return cmp.Or(cmp.Compare(y.Replies, x.Replies), cmp.Compare(x.Label(), y.Label()), cmp.Compare(x.WorkloadKind, y.WorkloadKind))
	})
	a.Truncated = append([]report.TruncatedClient{}, a.Truncated...) // not null
	a.Bypasses = sumBypasses(a.Bypasses)
	a.Workloads, a.Changes = kept, []report.Change{}
	if len(kept) > 0 {
		a.Changes = append(a.Changes, saving(report.Change{Kind: report.ChangeAutopath, Text: "autopath @kubernetes"}, float64(a.Waste), a.Queries, a.QueriesPerSecond))
	}
}

// idOf returns whose client c is.
func idOf(c *report.Client) report.WorkloadID {
	return report.WorkloadID{Kind: c.Kind, Namespace: c.Namespace, WorkloadKind: c.WorkloadKind, Workload: c.Workload}
}

const (
	clientRemedyText  = "let it ask over TCP after a reply with TC, or offer more bytes in its queries (EDNS; in HAProxy accepted_payload_size 8192)"
	bufsizeRemedyText = "in the Corefile, the size that the client offers, such as bufsize 8192"
)

// truncated returns the clients that get truncated replies and never ask over TCP.
func truncated(clients *report.Clients) (list []report.TruncatedClient) {
	for i := range clients.Clients {
		if c := &clients.Clients[i]; c.Unfollowed > 0 {
			list = append(list, report.TruncatedClient{WorkloadID: idOf(c), Replies: c.Unfollowed, Capped: c.UnfollowedCapped})
		}
	}
	return list
}

// Bypasses returns the clients that ask other DNS servers, of the names with the topic bypass.
func Bypasses(names *report.Names) (list []report.BypassClient) {
	for i := range names.Names {
		if n := &names.Names[i]; n.Client != nil {
			c := n.Client
			list = append(list, report.BypassClient{
				WorkloadID: report.WorkloadID{Kind: c.Kind, Namespace: c.Namespace, WorkloadKind: c.WorkloadKind, Workload: c.Workload},
				Server:     n.Name, Protocol: n.Cause, Queries: n.Queries,
			})
		}
	}
	return sumBypasses(list)
}

// sumBypasses returns list with one row for each workload, server and protocol, those with the most queries first.
func sumBypasses(list []report.BypassClient) []report.BypassClient {
	sums := make(map[report.BypassClient]uint64)
	for _, b := range list {
		n := b.Queries
		b.Queries = 0
		sums[b] += n
	}
	rows := []report.BypassClient{}
	for b, n := range sums {
		b.Queries = n
		rows = append(rows, b)
	}
	slices.SortFunc(rows, func(x, y report.BypassClient) int {
		return cmp.Or(cmp.Compare(y.Queries, x.Queries), cmp.Compare(x.Label(), y.Label()), cmp.Compare(x.WorkloadKind, y.WorkloadKind),
			cmp.Compare(x.Server, y.Server), cmp.Compare(x.Protocol, y.Protocol))
	})
	return rows
}

// remedies returns what ends the loss of records by truncated replies.
func remedies(c *report.TruncatedClient) (list []report.Relief) {
	if c.Replies > c.Capped {
		list = append(list, report.Relief{Kind: report.RemedyClient, Text: clientRemedyText, Reason: "it offers fewer bytes than the reply has"})
	}
	if c.Capped > 0 {
		list = append(list, report.Relief{Kind: report.RemedyBufsize, Text: bufsizeRemedyText, Reason: "it offers more bytes than the server block sends"})
	}
	return list
}

// saving returns c with what it saves of queries.
func saving(c report.Change, saved float64, queries uint64, perSecond float64) report.Change {
	c.Saved = uint64(saved)
	if queries > 0 {
		c.SavedShare = saved / float64(queries)
		c.SavedPerSecond = c.SavedShare * perSecond
	}
	return c
}

// DefaultNdots is the option ndots of pods.
const DefaultNdots = 5

// changes returns the changes for one workload, without changes that save less than [report.LeastWaste] of its
// queries.
func changes(w *report.AdvisedWorkload) []report.Change {
	list := []report.Change{}
	least := report.LeastWaste * float64(w.Queries)
	current := DefaultNdots
	if w.Ndots != nil {
		current = min(*w.Ndots, DefaultNdots)
	}
	if n, saved := bestNdots(w.Names, current); saved >= least && saved > 0 {
		c := report.Change{Kind: report.ChangeNdots, Ndots: n, Text: fmt.Sprintf(`dnsConfig: {options: [{name: ndots, value: "%d"}]}`, n)}
		list = append(list, saving(c, saved, w.Queries, w.QueriesPerSecond))
	}
	const few = 3
	for i := range w.Names[:min(few, len(w.Names))] {
		n := &w.Names[i]
		if float64(n.Waste) < least || n.Waste == 0 || !n.External {
			continue
		}
		c := report.Change{Kind: report.ChangeTrailingDot, Name: n.Name + ".", Text: n.Name + "."}
		list = append(list, saving(c, float64(n.Waste), w.Queries, w.QueriesPerSecond))
	}
	return list
}

// bestNdots returns the value of ndots that saves the most queries, and their number. A resolver asks for names
// with so many dots or more as they are first. That ends the waste of external names, and costs one query
// for each look-up of a name in the cluster. If several values save the same, it returns the highest. It
// considers values below current only: pods with a lower value have asked for these names as they are already.
func bestNdots(names []report.WastedName, current int) (best int, most float64) {
	for ndots := 1; ndots < current; ndots++ {
		saved := 0.0
		for i := range names {
			n := &names[i]
			switch {
			case n.Dots < ndots:
			case n.External:
				saved += float64(n.Waste)
			default:
				saved -= float64(n.Lookups)
			}
		}
		if saved >= most {
			best, most = ndots, saved
		}
	}
	return best, most
}
