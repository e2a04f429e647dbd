package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
)

// maxShownClients bounds the rows of one reply.
const maxShownClients = 1024

// The values of the parameters of /clients.
var (
	clientRows    = map[string]clients.By{"pod": clients.Pods, "workload": clients.Workloads, "namespace": clients.Namespaces}
	clientWindows = map[string]clients.Window{"10s": clients.TenSeconds, "1m": clients.Minute, "1h": clients.Hour}
	clientKinds   = map[clients.Kind]string{clients.PodClient: "pod", clients.Host: "host", clients.Unknown: "unknown", clients.Other: "other"}
)

// showClients answers with the clients of a window.
func (a *agent) showClients(w http.ResponseWriter, r *http.Request) {
	by, badBy := parameter(r, "by", "pod", clientRows)
	window, badWindow := parameter(r, "window", "1m", clientWindows)
	if table := a.countedTable(w, badBy, badWindow); table != nil {
		c := clientReport(table, by, window)
		c.Header = a.header()
		if by != "namespace" {
			a.describePods(c.Clients, by)
		}
		writeJSON(w, c)
	}
}

// describePods sets what the rows of pods or workloads say about pods.
func (a *agent) describePods(rows []report.Client, by string) {
	traits := a.builder.clients.podTraits(func(p clients.Pod) clients.Pod {
		if p.UID = ""; by == "workload" {
			p.Name = ""
		}
		return p
	})
	for i := range rows {
		c := &rows[i]
		key := clients.Pod{Namespace: c.Namespace, Name: c.Pod, Workload: clients.Workload{Kind: c.WorkloadKind, Name: c.Workload}}
		if t, ok := traits[key]; ok && c.Kind == "pod" {
			c.Ndots, c.IPv4Only = &t.ndots, t.ipv4Only
		}
	}
}

// parameter returns a parameter of a request, a key of values.
func parameter[V any](r *http.Request, name, byDefault string, values map[string]V) (string, error) {
	text := cmp.Or(r.URL.Query().Get(name), byDefault)
	if _, ok := values[text]; !ok {
		return "", fmt.Errorf("%s is %q; give one of %s", name, text, sortedKeys(values))
	}
	return text, nil
}

// countedTable returns the table of clients, up to date. If there is none, or one of the errors is not
// nil, it replies so and returns nil.
func (a *agent) countedTable(w http.ResponseWriter, errs ...error) *clients.Table {
	table := a.builder.clients.counted()
	if table == nil {
		http.Error(w, "queries are not counted by client; run the agent without --client-metrics=off", http.StatusConflict)
		return nil
	}
	if err := errors.Join(errs...); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	a.kernelPath.updateCounters() // before the counters are read
	return table
}

func sortedKeys[V any](m map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// clientReport returns the rows of table in a window, without the header.
func clientReport(table *clients.Table, by, window string) *report.Clients {
	return newClients(by, window, table.Report(clientRows[by], clientWindows[window]))
}

// newClients returns r, a report about a window, without the header.
func newClients(by, window string, r clients.Report) *report.Clients {
	rows := r.Clients[:min(maxShownClients, len(r.Clients))]
	out := &report.Clients{
		By: by, Window: window, WindowSeconds: r.Window.Seconds(), SinceSeconds: r.Since.Seconds(), Total: newClientCounts(r.Total),
		Addresses: r.Used, AddressLimit: r.Max, Refused: r.Refused, Clients: make([]report.Client, len(rows)), More: r.More + len(r.Clients) - len(rows),
	}
	for i := range rows {
		row := &out.Clients[i]
		*row = newClientRow(&rows[i])
		row.QueriesPerSecond = report.PerSecond(row.Window.Queries, out.WindowSeconds)
		row.Share = ratio(row.Window.Queries, out.Total.Queries)
	}
	return out
}

// newClientRow returns c as a row, without what depends on other rows.
func newClientRow(c *clients.Client) report.Client {
	row := report.Client{
		Kind: clientKinds[c.Kind], Namespace: c.Pod.Namespace, Pod: c.Pod.Name,
		WorkloadKind: c.Pod.Workload.Kind, Workload: c.Pod.Workload.Name, Addresses: []string{},
		P50Seconds: c.Quantile(50).Seconds(), P99Seconds: c.Quantile(99).Seconds(),
		Window: newClientCounts(c.Window), Total: newClientCounts(c.Total),
	}
	row.Unfollowed, row.UnfollowedCapped = c.Unfollowed, c.UnfollowedCapped
	if c.TopName.Name != "" {
		row.TopName = &report.TopName{Name: c.TopName.Name, Share: c.TopName.Share}
	}
	for _, addr := range c.Addrs {
		row.Addresses = append(row.Addresses, addr.String())
	}
	return row
}

func newClientCounts(c clients.Counts) report.ClientCounts {
	return report.ClientCounts{
		Queries: c.Queries(), NoError: c.NoError, NXDomain: c.NXDomain, Servfail: c.ServFail, Other: c.Other,
		Hits: c.Hits, Kernel: c.Kernel, Upstream: c.Upstream, Shed: c.Shed, Waste: c.Waste, Slow: c.Slow,
		TCP: c.Stream, Truncated: c.Truncated, AAAA: c.AAAA, AAAAUpstream: c.AAAAUpstream, Limited: c.AllLimited(),
	}
}
