package app

import (
	"cmp"
	"math"
	"net/http"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
)

// maxShownNames bounds the rows of one reply.
const maxShownNames = 256

// nameTopics are the values of the parameter topic of /names.
var nameTopics = map[string]clients.Topic{
	"queries": clients.TopNames, "client": clients.TopClientNames, "waste": clients.TopWaste, "failing": clients.TopFailing, "slow": clients.TopSlow,
	"bypass": clients.TopBypass, "denied": clients.TopDenied,
}

// showNames answers with the names of a topic and a window.
func (a *agent) showNames(w http.ResponseWriter, r *http.Request) {
	topic, badTopic := parameter(r, "topic", "queries", nameTopics)
	window, badWindow := parameter(r, "window", "1m", clientWindows)
	if b := a.bypassReport(); topic == "bypass" && !b.Counted {
		http.Error(w, "packets to other DNS servers are not counted: "+cmp.Or(b.Reason, bypassFix), http.StatusConflict)
		return
	}
	if table := a.countedTable(w, badTopic, badWindow); table != nil {
		n := nameReport(table, topic, window, maxShownNames)
		n.Header = a.header()
		writeJSON(w, n)
	}
}

// nameReport returns the first limit names of a topic in a window, without the header.
func nameReport(table *clients.Table, topic, window string, limit int) *report.Names {
	r := table.Names(nameTopics[topic], clientWindows[window], min(limit, maxShownNames))
	out := &report.Names{
		Topic: topic, Window: window, WindowSeconds: r.Covered.Seconds(), Queries: r.Total, Floor: r.Floor, MaxWeight: r.MaxWeight, KernelSample: r.KernelSample,
		Names: make([]report.Name, 0, len(r.Names)), More: r.More,
	}
	for i := range r.Names {
		out.Names = append(out.Names, newNameRow(nameTopics[topic], &r.Names[i], &r))
	}
	return out
}

// newNameRow returns n, a row of r, as a row.
func newNameRow(topic clients.Topic, n *clients.NameCount, r *clients.NameReport) report.Name {
	row := report.Name{
		Name: n.Name, Queries: n.Count, Error: n.Error,
		QueriesPerSecond: report.PerSecond(n.Count, r.Covered.Seconds()), Share: min(1, ratio(n.Count, r.Total)),
	}
	if r.MaxWeight > 1 {
		row.Deviation = uint64(math.Ceil(2 * math.Sqrt(float64(n.Count*r.MaxWeight))))
	}
	switch topic {
	case clients.TopClientNames, clients.TopDenied:
		client := newIdentity(n.Kind, &n.Pod, n.Addr)
		row.Client = &client
	case clients.TopBypass:
		client := newIdentity(n.Kind, &n.Pod, n.Addr)
		row.Client = &client
		row.Cause, row.Name, _ = strings.Cut(n.Name, " ")
	case clients.TopFailing, clients.TopSlow:
		row.Cause = n.Cause.String()
	}
	return row
}
