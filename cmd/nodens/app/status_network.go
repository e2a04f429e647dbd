package app

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/netsetup"
)

// failOpenReport returns what happens to queries while no agent listens.
func (a *agent) failOpenReport() report.FailOpen {
	var st netsetup.Stats
	if a.net != nil {
		st = a.net.Stats()
	}
	return newFailOpen(st, a.net != nil && a.opts.SetsUpRules(), a.opts.LocalIPs)
}

// restoredReport returns how often other programs have changed the agent's rules and addresses.
func (a *agent) restoredReport() (r report.Restored) {
	if a.net == nil {
		return r
	}
	st := a.net.Stats()
	if r.Total = st.Repairs; r.Total > 0 {
		last := st.RepairedAt.UTC()
		r.Last = &last
	}
	return r
}

// newFailOpen returns what happens to queries to the addresses while no agent listens. setsUpRules says
// that the agent sets up rules, whose state is st. kube-proxy's rules lead queries to a Service's address
// to the cluster DNS; a link-local address needs servers in the agent's rules.
func newFailOpen(st netsetup.Stats, setsUpRules bool, addrs []netip.Addr) report.FailOpen {
	f := report.FailOpen{Rules: st.Backend, RulesReason: st.BackendReason, Blocked: strings.Join(st.Blocked, ", "), Servers: st.Diversion, Capable: setsUpRules && !st.NoSocketMatch}
	switch {
	case !setsUpRules:
		f.Reason = "the agent sets up no rules"
	case st.NoSocketMatch:
		f.Reason = "the kernel can't match packets by socket"
	case !st.RulesInPlace:
		f.Reason = "the rules are not in place"
	case st.Diversion == 0 && slices.ContainsFunc(addrs, netip.Addr.IsLinkLocalUnicast):
		f.Reason = "no server of the cluster DNS is known"
	default:
		f.Active = true
	}
	return f
}

// servedBy returns who answers the node's queries. s is complete otherwise.
func (a *agent) servedBy(s *report.Status) []report.Serving {
	list := []report.Serving{{By: report.ServedByAgent, Since: s.ServingSince}}
	if since := a.kernelPath.activeSince(); s.KernelPath.Active && s.KernelPath.Answering > 0 && since != nil {
		list = append(list, report.Serving{By: report.ServedByKernel, Since: *since})
	}
	if a.net == nil {
		return list
	}
	return append(list, servedElsewhere(a.net.Stats(), a.opts.SetsUpRules(), a.opts.LocalIPs)...)
}

// servedElsewhere returns the cluster DNS if it gets queries to one of the addresses: without the agent's
// rules, kube-proxy's lead queries to a Service's address there.
func servedElsewhere(st netsetup.Stats, setsUpRules bool, addrs []netip.Addr) []report.Serving {
	isService := func(addr netip.Addr) bool { return !addr.IsLinkLocalUnicast() }
	if !setsUpRules || st.RulesInPlace || st.RulesSince.IsZero() || !slices.ContainsFunc(addrs, isService) {
		return nil
	}
	return []report.Serving{{By: report.ServedByClusterDNS, Since: st.RulesSince.UTC()}}
}
