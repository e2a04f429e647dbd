package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// shownRows is the number of rows that are returned.
const shownRows = 1024

// merger adds up the rows of the nodes' replies that have the same key.
type merger[K comparable, R any] struct {
	key   func(*R) K
	merge func(sum, row *R)
	order func(a, b *R) int // what comes first is kept
	rows  []R
	index map[K]int // in rows
}

func (m *merger[K, R]) add(row R) {
	if m.index == nil {
		m.index = make(map[K]int)
	}
	key := m.key(&row)
	if i, ok := m.index[key]; ok {
		m.merge(&m.rows[i], &row)
		return
	}
	m.index[key] = len(m.rows)
	m.rows = append(m.rows, row)
}

// keep sorts the rows, keeps the first so many, and returns the others.
func (m *merger[K, R]) keep(most int) (dropped []R) {
	slices.SortFunc(m.rows, func(a, b R) int { return m.order(&a, &b) })
	most = min(most, len(m.rows))
	m.rows, dropped = slices.Clip(m.rows[:most]), slices.Clone(m.rows[most:])
	clear(m.index)
	for i := range m.rows {
		m.index[m.key(&m.rows[i])] = i
	}
	return dropped
}

// Status asks all agents for their status.
func Status(ctx context.Context, c *Cluster) (*report.ClusterStatus, error) {
	s := &report.ClusterStatus{Agents: []report.Status{}}
	var err error
	s.Cluster, err = Ask(ctx, c, &Question[report.Status]{
		Args:   []string{"status", "-o", "json"},
		Serves: func(a, b *report.Status) int { return a.ServingSince.Compare(b.ServingSince) },
		Each: func(node string, reply *report.Status) {
			reply.Node = cmp.Or(reply.Node, node)
			s.Agents = append(s.Agents, *reply)
		},
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(s.Agents, func(a, b report.Status) int { return cmp.Compare(a.Node, b.Node) })
	s.Healthy = len(s.Unanswered) == 0 && !slices.ContainsFunc(s.Agents, func(a report.Status) bool { return !a.Healthy })
	return s, nil
}

// Upstreams asks all agents for the servers that they forward to. Servers with the highest values of order come
// first.
func Upstreams(ctx context.Context, c *Cluster, order func(*report.ClusterUpstream) float64) (*report.ClusterUpstreams, error) {
	m := merger[string, report.ClusterUpstream]{
		key:   func(u *report.ClusterUpstream) string { return u.To },
		merge: mergeUpstreams,
		order: func(a, b *report.ClusterUpstream) int {
			return cmp.Or(cmp.Compare(order(b), order(a)), cmp.Compare(a.To, b.To))
		},
	}
	r := &report.ClusterUpstreams{Upstreams: []report.ClusterUpstream{}}
	rate := func(u *report.Upstreams) (sum float64) {
		for _, to := range u.Servers() {
			sum += to.Recent.PerSecond
		}
		return sum
	}
	var err error
	r.Cluster, err = Ask(ctx, c, &Question[report.Upstreams]{
		Args:   []string{"top", "--by", "upstream", "-o", "json"},
		Serves: func(a, b *report.Upstreams) int { return cmp.Compare(rate(a), rate(b)) },
		Each: func(_ string, u *report.Upstreams) {
			r.More += u.More
			r.PerSecond += rate(u)
			for _, to := range u.Servers() {
				m.add(UpstreamRow(&to))
			}
			if len(m.rows) > 2*shownRows {
				r.More += len(m.keep(shownRows))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	r.More += len(m.keep(shownRows))
	for _, u := range m.rows {
		if u.PerSecond > 0 {
			u.Share = u.PerSecond / r.PerSecond
		}
		r.Upstreams = append(r.Upstreams, u)
	}
	return r, nil
}

// UpstreamRow returns a server of one node as a row of several.
func UpstreamRow(to *report.Upstream) report.ClusterUpstream {
	u := report.ClusterUpstream{
		To: to.To, Nodes: 1, PerSecond: to.Recent.PerSecond, ServfailShare: to.Recent.ServfailShare, UnansweredShare: to.Recent.UnansweredShare,
		RTTSeconds: to.RTTSeconds, P50Seconds: to.Recent.P50Seconds, P99Seconds: to.Recent.P99Seconds,
	}
	if to.Down {
		u.Down = 1
	}
	if to.Suspect {
		u.Suspect = 1
	}
	if to.Budget != nil {
		budget := *to.Budget
		budget.Clients = []report.WaitingClient{}
		u.Budget = &budget
	}
	return u
}

// mergeUpstreams adds u to sum.
func mergeUpstreams(sum, u *report.ClusterUpstream) {
	sum.Nodes, sum.Down, sum.Suspect = sum.Nodes+u.Nodes, sum.Down+u.Down, sum.Suspect+u.Suspect
	if rate := sum.PerSecond + u.PerSecond; rate > 0 {
		sum.ServfailShare = (sum.PerSecond*sum.ServfailShare + u.PerSecond*u.ServfailShare) / rate
	}
	sum.PerSecond += u.PerSecond
	sum.UnansweredShare = max(sum.UnansweredShare, u.UnansweredShare)
	sum.RTTSeconds, sum.P50Seconds, sum.P99Seconds = max(sum.RTTSeconds, u.RTTSeconds), max(sum.P50Seconds, u.P50Seconds), max(sum.P99Seconds, u.P99Seconds)
	a, b := sum.Budget, u.Budget
	switch {
	case a == nil:
		sum.Budget = b
		return
	case b == nil:
		return
	case b.UsedShare > a.UsedShare:
		a.LimitPerSecond, a.Auto, a.UsedShare = b.LimitPerSecond, b.Auto, b.UsedShare
	}
	a.Waiting, a.Waited, a.Expired, a.GivenUp = a.Waiting+b.Waiting, a.Waited+b.Waited, a.Expired+b.Expired, a.GivenUp+b.GivenUp
}
