package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/internal/report"
)

// Advice asks all agents for their advice, and adds it up. Workloads that waste little on a node are not part of
// the node's advice, and therefore not of the sum.
func Advice(ctx context.Context, c *Cluster, window string) (*report.ClusterAdvice, error) {
	workloads := merger[[3]string, report.AdvisedWorkload]{
		key:   func(w *report.AdvisedWorkload) [3]string { return [3]string{w.Namespace, w.WorkloadKind, w.Workload} },
		merge: mergeWorkloads,
	}
	truncated := merger[report.WorkloadID, report.TruncatedClient]{
		key: func(c *report.TruncatedClient) report.WorkloadID { return c.WorkloadID },
		merge: func(sum, c *report.TruncatedClient) {
			sum.Replies, sum.Capped = sum.Replies+c.Replies, sum.Capped+c.Capped
		},
	}
	r := &report.ClusterAdvice{Window: window, Budgets: []report.NodeBudget{}}
	var err error
	r.Cluster, err = Ask(ctx, c, &Question[report.Advice]{
		Args:   []string{"advise", "--window", window, "-o", "json"},
		Serves: func(a, b *report.Advice) int { return cmp.Compare(a.Queries, b.Queries) },
		Each: func(node string, a *report.Advice) {
			r.Budgets = append(r.Budgets, NodeBudgets(node, a.Budgets)...)
			if r.WindowSeconds == 0 || a.WindowSeconds < r.WindowSeconds {
				r.WindowSeconds = a.WindowSeconds
			}
			r.Queries, r.Waste, r.QueriesPerSecond = r.Queries+a.Queries, r.Waste+a.Waste, r.QueriesPerSecond+a.QueriesPerSecond
			r.UnusableAAAA, r.UnusableUpstream = r.UnusableAAAA+a.UnusableAAAA, r.UnusableUpstream+a.UnusableUpstream
			for _, w := range a.Workloads {
				workloads.add(w)
			}
			for _, c := range a.Truncated {
				truncated.add(c)
			}
			r.Bypasses = append(r.Bypasses, a.Bypasses...)
		},
	})
	if err != nil {
		return nil, err
	}
	r.Workloads, r.Truncated = workloads.rows, truncated.rows
	advice.Complete(&r.AdviceCounts)
	slices.SortFunc(r.Budgets, func(a, b report.NodeBudget) int {
		return cmp.Or(advice.CompareBudgets(&a.AdvisedBudget, &b.AdvisedBudget), cmp.Compare(a.Node, b.Node))
	})
	r.MoreBudgets = max(0, len(r.Budgets)-shownRows)
	r.Budgets = r.Budgets[:len(r.Budgets)-r.MoreBudgets]
	return r, nil
}

// NodeBudgets returns the budgets of a node as those of several.
func NodeBudgets(node string, budgets []report.AdvisedBudget) []report.NodeBudget {
	list := make([]report.NodeBudget, len(budgets))
	for i := range budgets {
		list[i] = report.NodeBudget{Node: node, AdvisedBudget: budgets[i]}
	}
	return list
}

// mergeWorkloads adds w to sum.
func mergeWorkloads(sum, w *report.AdvisedWorkload) {
	sum.Queries, sum.Waste, sum.QueriesPerSecond = sum.Queries+w.Queries, sum.Waste+w.Waste, sum.QueriesPerSecond+w.QueriesPerSecond
	if w.Ndots != nil && (sum.Ndots == nil || *sum.Ndots < *w.Ndots) {
		sum.Ndots = w.Ndots
	}
	if sum.NamesOf != w.NamesOf {
		sum.NamesOf = cmp.Or(min(sum.NamesOf, w.NamesOf), sum.NamesOf, w.NamesOf) // namespace, if one of them is
	}
	sum.Names = advice.Sum(sum.Names, w.Names)
}
