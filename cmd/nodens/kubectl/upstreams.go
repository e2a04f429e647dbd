package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// Upstreams asks all agents for the servers that they forward to. Servers with the highest values of order come
// first.
func Upstreams(ctx context.Context, c *Cluster, order func(*report.ClusterUpstream) float64) (*report.ClusterUpstreams, error) {
	m := upstreamMerge{index: make(map[string]*mergedUpstream)}
	cluster, err := Ask(ctx, c, &Question[report.Upstreams]{
		Args:   []string{"top", "--by", "upstream", "-o", "json"},
		Serves: func(a, b *report.Upstreams) int { return cmp.Compare(exchangeRate(a), exchangeRate(b)) },
		Each:   m.add,
	})
	if err != nil {
		return nil, err
	}
	return m.result(cluster, order), nil
}

// exchangeRate returns the exchanges per second of an agent.
func exchangeRate(u *report.Upstreams) (sum float64) {
	for _, to := range u.Servers() {
		sum += to.Recent.PerSecond
	}
	return sum
}

// mergedUpstream is a server, with its rate of SERVFAIL, from which the share is computed at the end.
type mergedUpstream struct {
	report.ClusterUpstream
	servfail float64
}

// upstreamMerge adds up the replies of the nodes.
type upstreamMerge struct {
	index map[string]*mergedUpstream
	more  int
}

func (m *upstreamMerge) add(_ string, u *report.Upstreams) {
	m.more += u.More
	servers := u.Servers()
	for i := range servers {
		m.addServer(&servers[i])
	}
}

func (m *upstreamMerge) addServer(to *report.Upstream) {
	u := m.index[to.To]
	if u == nil {
		if len(m.index) >= rows {
			m.more++
			return
		}
		u = &mergedUpstream{ClusterUpstream: report.ClusterUpstream{To: to.To}}
		m.index[to.To] = u
	}
	u.Nodes++
	if to.Down {
		u.Down++
	}
	if to.Suspect {
		u.Suspect++
	}
	u.Budget = mergeBudgets(u.Budget, to.Budget)
	r := &to.Recent
	u.PerSecond += r.PerSecond
	u.servfail += r.PerSecond * r.ServfailShare
	u.UnansweredShare = max(u.UnansweredShare, r.UnansweredShare)
	u.RTTSeconds, u.P50Seconds, u.P99Seconds = max(u.RTTSeconds, to.RTTSeconds), max(u.P50Seconds, r.P50Seconds), max(u.P99Seconds, r.P99Seconds)
}

// mergeBudgets returns the budget with the higher use of two nodes, with the sums of their counters and without
// clients. Both may be nil.
func mergeBudgets(a, b *report.Budget) *report.Budget {
	if a == nil && b == nil {
		return nil
	}
	sum := report.Budget{UsedShare: -1}
	for _, one := range []*report.Budget{a, b} {
		if one == nil {
			continue
		}
		if one.UsedShare > sum.UsedShare {
			sum.LimitPerSecond, sum.Auto, sum.UsedShare = one.LimitPerSecond, one.Auto, one.UsedShare
		}
		sum.Waiting, sum.Waited, sum.Expired, sum.GivenUp = sum.Waiting+one.Waiting, sum.Waited+one.Waited, sum.Expired+one.Expired, sum.GivenUp+one.GivenUp
	}
	sum.Clients = []report.WaitingClient{}
	return &sum
}

func (m *upstreamMerge) result(cluster report.Cluster, order func(*report.ClusterUpstream) float64) *report.ClusterUpstreams {
	r := &report.ClusterUpstreams{Cluster: cluster, Upstreams: []report.ClusterUpstream{}, More: m.more}
	for _, u := range m.index {
		r.PerSecond += u.PerSecond
	}
	for _, u := range m.index {
		if u.PerSecond > 0 {
			u.Share, u.ServfailShare = u.PerSecond/r.PerSecond, u.servfail/u.PerSecond
		}
		r.Upstreams = append(r.Upstreams, u.ClusterUpstream)
	}
	slices.SortFunc(r.Upstreams, func(a, b report.ClusterUpstream) int {
		return cmp.Or(cmp.Compare(order(&b), order(&a)), cmp.Compare(a.To, b.To))
	})
	return r
}
