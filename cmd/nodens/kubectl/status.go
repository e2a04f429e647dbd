package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// Status asks all agents for their status.
func Status(ctx context.Context, c *Cluster) (*report.ClusterStatus, error) {
	s := &report.ClusterStatus{Agents: []report.Status{}}
	cluster, err := Ask(ctx, c, &Question[report.Status]{
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
	s.Cluster = cluster
	slices.SortFunc(s.Agents, func(a, b report.Status) int { return cmp.Compare(a.Node, b.Node) })
	s.Healthy = len(cluster.Unanswered) == 0 && !slices.ContainsFunc(s.Agents, func(a report.Status) bool { return !a.Healthy })
	return s, nil
}
