package app

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/report"
)

// maxShownPods bounds the addresses of one reply.
const maxShownPods = 1024

// showPolicies answers with the policies that bind the pods of the node.
func (a *agent) showPolicies(w http.ResponseWriter, _ *http.Request) {
	p := report.Policies{Header: a.header(), Unknown: a.opts.DNSPolicies.String(), Pods: []report.PolicyPod{}}
	if g := a.current.Load(); g != nil && g.policies() != nil {
		table := g.policies()
		p.Known = table.Known()
		for addr, class := range table.All() {
			if class == nil {
				continue
			}
			row := report.PolicyPod{Address: addr.String(), Policies: newBoundPolicies(class)}
			_, pod := a.builder.clients.owners().Owner(addr)
			row.Namespace, row.Pod = pod.Namespace, pod.Name
			p.Pods = append(p.Pods, row)
		}
	}
	slices.SortFunc(p.Pods, func(a, b report.PolicyPod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Address, b.Address))
	})
	shown := min(len(p.Pods), maxShownPods)
	p.Pods, p.More = p.Pods[:shown], len(p.Pods)-shown
	writeJSON(w, p)
}

// newBoundPolicies returns the policies of a class as a reply shows them.
func newBoundPolicies(c *dnspolicy.Class) (list []report.BoundPolicy) {
	for _, p := range c.Policies() {
		row := report.BoundPolicy{Name: p.Name, Mode: "Enforce", Default: "Deny", Names: p.Len()}
		var audited uint64
		if p.Counts != nil {
			row.Denied, audited = p.Counts.Load()
		}
		if p.Audit {
			row.Mode, row.Denied = "Audit", audited
		}
		if p.AllowOthers {
			row.Default = "Allow"
		}
		list = append(list, row)
	}
	return list
}
