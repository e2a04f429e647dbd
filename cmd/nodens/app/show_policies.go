package app

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
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

// draftPolicy answers with what a draft of a policy would deny of the names in memory.
func (a *agent) draftPolicy(w http.ResponseWriter, r *http.Request) {
	g := a.current.Load()
	view := g.views[g.firstView+withPolicies]
	if view == nil || view.Policies() == nil {
		http.Error(w, "the agent watches no DNSPolicies; run it with --dns-policies=open or closed", http.StatusConflict)
		return
	}
	var classes map[netip.Addr]*dnspolicy.Class
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, report.MaxDraft))
	if err == nil {
		classes, err = view.DraftPolicy(text)
	}
	if err != nil {
		err = fmt.Errorf("the draft: %w", err)
	}
	if table := a.countedTable(w, err); table != nil {
		_, at, _ := listenerAt(g, "")
		writeJSON(w, report.DraftPolicy{Header: a.header(), Draft: newDraft(at.Routes, classes, table.Names(clients.TopClientNames, clients.Hour, math.MaxInt))})
	}
}

// newDraft returns what classes in place of those in force would deny of names.
func newDraft(rt *resolver.Routes, classes map[netip.Addr]*dnspolicy.Class, names clients.NameReport) report.Draft {
	d := report.Draft{
		WindowSeconds: names.Covered.Seconds(), Floor: names.Floor, KernelSample: names.KernelSample,
		Addresses: len(classes), Names: []report.DraftDenial{},
	}
	for i := range names.Names {
		n := &names.Names[i]
		name, err := wire.ParseName(n.Name)
		if classes[n.Addr] == nil || err != nil {
			continue
		}
		d.Queries += n.Count
		denial, counts := rt.Judge(classes[n.Addr], name)
		if denial.Policy == nil || denial.Audit || !counts {
			continue
		}
		d.Denied += n.Count
		now, _ := rt.Judge(rt.Policies().ClassOf(n.Addr), name)
		d.Names = append(d.Names, report.DraftDenial{
			Namespace: n.Pod.Namespace, Pod: n.Pod.Name, Address: n.Addr.String(), Name: n.Name, Queries: n.Count,
			Policy: denial.Policy.Name, DeniedNow: now.Policy != nil && !now.Audit,
		})
	}
	shown := min(len(d.Names), maxShownNames)
	d.Names, d.More = d.Names[:shown], len(d.Names)-shown
	return d
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
