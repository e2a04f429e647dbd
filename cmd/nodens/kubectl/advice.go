package kubectl

import (
	"cmp"
	"context"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/internal/report"
)

// Advice asks all agents for their advice, and adds it up. Workloads that waste little on a node are not part of
// the node's advice, and therefore not of the sum.
func Advice(ctx context.Context, c *Cluster, window string) (*report.ClusterAdvice, error) {
	m := adviceMerge{index: make(map[[3]string]int)}
	m.result.Budgets = []report.NodeBudget{}
	cluster, err := Ask(ctx, c, &Question[report.Advice]{
		Args:   []string{"advise", "--window", window, "-o", "json"},
		Serves: func(a, b *report.Advice) int { return cmp.Compare(a.Queries, b.Queries) },
		Each:   m.add,
	})
	if err != nil {
		return nil, err
	}
	m.result.Cluster, m.result.Window = cluster, window
	advice.Complete(&m.result.AdviceCounts)
	advice.SortBudgets(m.result.Budgets, func(b *report.NodeBudget) *report.AdvisedBudget { return &b.AdvisedBudget })
	m.result.MoreBudgets = max(0, len(m.result.Budgets)-rows)
	m.result.Budgets = m.result.Budgets[:len(m.result.Budgets)-m.result.MoreBudgets]
	return &m.result, nil
}

// adviceMerge adds up the replies of the nodes.
type adviceMerge struct {
	result report.ClusterAdvice
	index  map[[3]string]int // of workloads
}

func (m *adviceMerge) add(node string, a *report.Advice) {
	r := &m.result
	for i := range a.Budgets {
		r.Budgets = append(r.Budgets, report.NodeBudget{Node: node, AdvisedBudget: a.Budgets[i]})
	}
	if r.WindowSeconds == 0 || a.WindowSeconds < r.WindowSeconds {
		r.WindowSeconds = a.WindowSeconds
	}
	r.Queries, r.Waste, r.QueriesPerSecond = r.Queries+a.Queries, r.Waste+a.Waste, r.QueriesPerSecond+a.QueriesPerSecond
	r.Truncated = append(r.Truncated, a.Truncated...)
	for i := range a.Workloads {
		w := &a.Workloads[i]
		key := [3]string{w.Namespace, w.WorkloadKind, w.Workload}
		at, ok := m.index[key]
		if !ok {
			m.index[key] = len(r.Workloads)
			r.Workloads = append(r.Workloads, *w)
			continue
		}
		sum := &r.Workloads[at]
		sum.Queries, sum.Waste, sum.QueriesPerSecond = sum.Queries+w.Queries, sum.Waste+w.Waste, sum.QueriesPerSecond+w.QueriesPerSecond
		if w.Ndots != nil && (sum.Ndots == nil || *sum.Ndots < *w.Ndots) {
			sum.Ndots = w.Ndots
		}
		if sum.NamesOf != w.NamesOf {
			sum.NamesOf = cmp.Or(min(sum.NamesOf, w.NamesOf), sum.NamesOf, w.NamesOf) // namespace, if one of them is
		}
		sum.Names = advice.Sum(sum.Names, w.Names)
	}
}
