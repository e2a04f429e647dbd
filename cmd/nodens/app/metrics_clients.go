package app

import (
	"github.com/nodens-dns/nodens/server/clients"
)

// The metrics by client. Clients are grouped, and the groups are bounded: names of pods would be a
// series for each pod that ever ran.
var (
	clientQueries  = counter("nodens_client_queries_total", "Queries by the client's namespace, and with --client-metrics=workload by its workload, such as Deployment/web, and by result: noerror, nxdomain, servfail or other. The namespace is (host) for the node itself, (unknown) for addresses of no known pod, and (other) beyond 32 namespaces or 64 workloads. The annotation nodens.dev/client-metrics of a Namespace chooses namespace, workload, or off, which counts its pods as (other). A series ends 60 s after the last pod.", "namespace", "workload", "result")
	clientWaste    = counter("nodens_client_search_waste_total", "Queries of nodens_client_queries_total answered NXDOMAIN for names that only a search path makes.", "namespace", "workload")
	clientUpstream = counter("nodens_client_upstream_queries_total", "Queries of nodens_client_queries_total for which an upstream was asked.", "namespace", "workload")
	clientLimited  = counter("nodens_client_limited_total", "Queries that were shed, refused or dropped because of a limit, and connections closed for another client's, by the client's namespace and by the limit: client_limit (over the rate of client_limit or --client-limit), places (no place to wait in, or lost it), in_flight (too many queries in flight to the upstreams), budget (over max_rate), socket (dropped by the socket's reader), connections. Only places, in_flight and budget are also counted in nodens_client_queries_total.", "namespace", "reason")
	clientSlow     = counter("nodens_client_slow_total", "Queries of nodens_client_queries_total answered after 100 ms or later.", "namespace", "workload")
)

// clients puts the metrics by client. of is nil if none are counted.
func (s scrape) clients(of *clients.Table) {
	if of == nil {
		return
	}
	limited := make(map[string][]uint64) // by namespace
	for _, x := range of.Series() {
		if limited[x.Namespace] == nil {
			limited[x.Namespace] = make([]uint64, len(x.Counts.Limited))
		}
		for reason, n := range x.Counts.Limited {
			limited[x.Namespace][reason] += n
		}
		labels := []string{x.Namespace, workloadLabel(x.Workload)}
		for result, n := range map[string]uint64{
			"noerror": x.Counts.NoError, "nxdomain": x.Counts.NXDomain, "servfail": x.Counts.ServFail, "other": x.Counts.Other,
		} {
			s.put(clientQueries, float64(n), append(labels, result)...)
		}
		s.put(clientWaste, float64(x.Counts.Waste), labels...)
		s.put(clientUpstream, float64(x.Counts.Upstream), labels...)
		s.put(clientSlow, float64(x.Counts.Slow), labels...)
	}
	for namespace, counts := range limited {
		for reason, n := range counts {
			s.put(clientLimited, float64(n), namespace, clients.Reason(reason).String())
		}
	}
}

// workloadLabel returns the value of the label workload, "" for none.
func workloadLabel(w clients.Workload) string {
	if w == (clients.Workload{}) {
		return ""
	}
	return w.Kind + "/" + w.Name
}
