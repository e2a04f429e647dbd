package kubectl

import (
	"cmp"
	"context"
	"slices"

	"github.com/nodens-dns/nodens/internal/report"
)

// Policies asks all agents which DNSPolicies bind the pods of their nodes.
func Policies(ctx context.Context, c *Cluster) (*report.ClusterPolicies, error) {
	r := &report.ClusterPolicies{Pods: []report.ClusterPolicyPod{}}
	var err error
	r.Cluster, err = Ask(ctx, c, &Question[report.Policies]{
		Args:   []string{"policy", "-o", "json"},
		Serves: func(a, b *report.Policies) int { return cmp.Compare(len(a.Pods), len(b.Pods)) },
		Each: func(node string, reply *report.Policies) {
			r.More += reply.More
			for _, p := range reply.Pods {
				r.Pods = append(r.Pods, report.ClusterPolicyPod{Node: node, PolicyPod: p})
			}
		},
	})
	slices.SortFunc(r.Pods, func(a, b report.ClusterPolicyPod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Address, b.Address))
	})
	shown := min(len(r.Pods), shownRows)
	r.Pods, r.More = r.Pods[:shown], r.More+len(r.Pods)-shown
	return r, err
}

// DraftPolicy asks all agents what a draft of a DNSPolicy would deny of the names that they have in memory.
func DraftPolicy(ctx context.Context, c *Cluster, draft []byte) (*report.ClusterDraftPolicy, error) {
	r := &report.ClusterDraftPolicy{Draft: report.Draft{Names: []report.DraftDenial{}}}
	var err error
	r.Cluster, err = Ask(ctx, c, &Question[report.DraftPolicy]{
		Args: []string{"policy", "--draft", "-", "-o", "json"}, Input: draft,
		Serves: func(a, b *report.DraftPolicy) int { return cmp.Compare(a.Queries, b.Queries) },
		Each: func(_ string, reply *report.DraftPolicy) {
			if reply.Addresses > 0 && (r.Addresses == 0 || reply.WindowSeconds < r.WindowSeconds) {
				r.WindowSeconds = reply.WindowSeconds
			}
			r.Addresses, r.Queries, r.Denied = r.Addresses+reply.Addresses, r.Queries+reply.Queries, r.Denied+reply.Denied
			r.Floor, r.KernelSample, r.More = max(r.Floor, reply.Floor), max(r.KernelSample, reply.KernelSample), r.More+reply.More
			r.Names = append(r.Names, reply.Names...)
		},
	})
	slices.SortStableFunc(r.Names, func(a, b report.DraftDenial) int {
		return cmp.Or(cmp.Compare(b.Queries, a.Queries), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
	})
	shown := min(len(r.Names), shownNames)
	r.Names, r.More = r.Names[:shown], r.More+len(r.Names)-shown
	return r, err
}
