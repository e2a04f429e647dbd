package attribution

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
)

// line is a line of the result.
type line struct{ places, queries, first, next, unknown, kernel uint64 }

// check compares what the agent reports with what the clients have asked.
func (r *round) check(table map[string]*line) {
	r.t.Helper()
	rows := r.rows()
	workloads := make(map[[2]string]counts) // by the labels namespace and workload
	asked := r.marker.most.plus(r.asHost)
	if got := reported(rows.host); got != r.asHost {
		r.t.Errorf("%+v count for the node, want %+v", got, r.asHost)
	}
	for _, p := range r.places {
		l := table[p.name]
		if l == nil {
			l = new(line)
			table[p.name] = l
		}
		r.checkPlace(p, rows, l)
		asked = asked.plus(p.asked)
		for _, pod := range p.pods() {
			key := [2]string{pod.namespace, "Deployment/" + pod.workload}
			workloads[key] = workloads[key].plus(pod.got)
		}
	}
	r.checkWorkloads(workloads)
	r.checkMetrics(workloads, asked)
	r.checkNames()
}

// checkNames checks that the report of names and clients has a pod's own name for no other client. A client of
// which the agent could not know the pod has the pod's address.
func (r *round) checkNames() {
	r.t.Helper()
	owners := make(map[string]*pod)
	for _, p := range r.places {
		for _, pod := range p.pods() {
			owners[pod.ownName()] = pod
		}
	}
	seen := 0
	for _, row := range r.names("client").Names {
		p := owners[row.Name]
		if p == nil {
			continue
		}
		seen++
		if c := row.Client; c.Kind != "unknown" && (c.Namespace != p.namespace || c.Pod != p.name) ||
			!slices.ContainsFunc(p.addrs, func(a netip.Addr) bool { return a.String() == c.Address }) {
			r.t.Errorf("%s counts for %+v", row.Name, c)
		}
	}
	if seen == 0 {
		r.t.Error("the report of names and clients has no name that only one pod asks for")
	}
}

// checkPlace compares the rows of a place, and adds them to l.
func (r *round) checkPlace(p *place, rows rows, l *line) {
	r.t.Helper()
	l.places++
	l.queries += p.asked.queries()
	sum := counts{}
	for _, pod := range p.pods() {
		row := rows.pods[pod.key()]
		pod.got = reported(row)
		if !pod.got.within(pod.least, pod.most) {
			r.t.Errorf("%s: %v: %+v count for pod %s, want %+v to %+v", p.name, p.addrs, pod.got, pod.name, pod.least, pod.most)
		}
		sum = sum.plus(pod.got)
		l.kernel += row.Kernel
	}
	l.first += p.old.got.queries()
	l.next += sum.queries() - p.old.got.queries()
	for _, a := range p.addrs {
		unknown := reported(rows.unknown[a])
		sum = sum.plus(unknown)
		l.unknown += unknown.queries()
		l.kernel += rows.unknown[a].Kernel
	}
	if sum != p.asked {
		r.t.Errorf("%s: %v: %+v are counted, want %+v", p.name, p.addrs, sum, p.asked)
	}
}

// checkWorkloads compares the rows of workloads and of namespaces with the sums over their pods.
func (r *round) checkWorkloads(workloads map[[2]string]counts) {
	r.t.Helper()
	want, namespaces := make(map[string]counts), make(map[string]counts)
	for labels, c := range workloads {
		want[labels[0]+" "+labels[1]] = c
		namespaces[labels[0]+" /"] = namespaces[labels[0]+" /"].plus(c)
	}
	maps.Copy(want, namespaces)
	for _, by := range []string{"workload", "namespace"} {
		for _, row := range r.clients(by).Clients {
			key := row.Namespace + " " + row.WorkloadKind + "/" + row.Workload
			if c, ok := want[key]; ok && c != reported(row.Total) {
				r.t.Errorf("by %s, %s has %+v, want %+v", by, key, reported(row.Total), c)
			}
			delete(want, key)
		}
	}
	if len(want) > 0 {
		r.t.Errorf("there is no row for %v", slices.Collect(maps.Keys(want)))
	}
}

// checkMetrics compares the metrics with the sums over the pods of a workload, and with all that was asked.
func (r *round) checkMetrics(workloads map[[2]string]counts, asked counts) {
	r.t.Helper()
	metrics, err := r.Metrics()
	r.must(err)
	for labels, want := range workloads {
		of := func(result string) uint64 {
			return uint64(metrics[fmt.Sprintf("nodens_client_queries_total{namespace=%q,result=%q,workload=%q}", labels[0], result, labels[1])])
		}
		waste := uint64(metrics[fmt.Sprintf("nodens_client_search_waste_total{namespace=%q,workload=%q}", labels[0], labels[1])])
		if got := (counts{of("noerror"), of("nxdomain"), of("servfail"), waste}); got != want {
			r.t.Errorf("the metrics of %s are %+v, want %+v", labels, got, want)
		}
	}
	queries, waste := metrics.Sum("nodens_client_queries_total"), metrics.Sum("nodens_client_search_waste_total")
	if uint64(queries) != asked.queries() || uint64(waste) != asked.Waste {
		r.t.Errorf("the metrics say %v queries and %v that are waste, want %d and %d", queries, waste, asked.queries(), asked.Waste)
	}
}

// format returns the result as a table.
func format(table map[string]*line) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "address\tclients\tqueries\told pod\tnew pod\tunknown\tin the kernel")
	for _, way := range ways {
		if l := table[way.name]; l != nil {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", way.name, l.places, l.queries, l.first, l.next, l.unknown, l.kernel)
		}
	}
	w.Flush()
	return b.String()
}
