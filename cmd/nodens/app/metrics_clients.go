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
	clientSlow     = counter("nodens_client_slow_total", "Queries of nodens_client_queries_total answered after 100 ms or later.", "namespace", "workload")
)

// clients puts the metrics by client. of is nil if none are counted.
func (s scrape) clients(of *clients.Table) {
	if of == nil {
		return
	}
	for _, x := range of.Series() {
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
}

// workloadLabel returns the value of the label workload, "" for none.
func workloadLabel(w clients.Workload) string {
	if w == (clients.Workload{}) {
		return ""
	}
	return w.Kind + "/" + w.Name
}
