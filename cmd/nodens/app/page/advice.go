package page

import (
	"fmt"
	"math"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/internal/report"
)

// adviceRow is a change for a workload, or for all pods. saved and savedShare are 0 for changes that save no queries.
type adviceRow struct {
	workload, change, help       string
	waste, saved, savedPerSecond float64
}

// adviceTable returns the table of what `nodens advise` shows: changes that stop search waste, and those for clients that
// get truncated replies and never ask over TCP.
func adviceTable(source Source, p parameters) table {
	t := tableOf[adviceRow]{
		id: "advice", caption: "Advice", order: "saved", empty: "Nothing to advise: no workload wastes 5% of its queries.",
		search: func(r *adviceRow) []string { return []string{r.workload} },
	}
	rows, err := adviceRows(source, p.Window)
	if err != nil {
		t.empty = err.Error()
	}
	number := func(key, title, help string, value func(*adviceRow) float64, format func(float64) string) column[adviceRow] {
		return column[adviceRow]{key, title, help, func(r *adviceRow) cell {
			if value(r) == 0 {
				return cell{Text: "–"}
			}
			return cell{Text: format(value(r))}
		}, value}
	}
	t.columns = []column[adviceRow]{
		{key: "name", title: "Workload", help: "whose pods, or (all)", text: func(r *adviceRow) cell { return cell{Text: r.workload} }},
		{key: "change", title: "Change", help: "what to change", text: func(r *adviceRow) cell { return cell{Text: r.change} }},
		{key: "where", title: "Where, or why", help: "what to write, or what is wrong", text: func(r *adviceRow) cell { return cell{Text: r.help} }},
		number("waste", "Waste", "share of its queries that only a search path makes", func(r *adviceRow) float64 { return r.waste }, percent),
		number("saved", "Saves/s", "queries per second that there would not be", func(r *adviceRow) float64 { return r.savedPerSecond }, perSecond),
		number("share", "Saves", "share of its queries", func(r *adviceRow) float64 { return r.saved }, percent),
	}
	out := t.build(rows, 0, p)
	out.Wide = true
	return out
}

// adviceRows returns the changes that follow from the counts of a window.
func adviceRows(source Source, window string) (rows []adviceRow, err error) {
	clients, err := source.Clients("workload", window, math.MaxInt)
	if err != nil {
		return nil, err
	}
	names, err := source.Names("client", window, math.MaxInt)
	if err != nil {
		return nil, err
	}
	waste, err := source.Names("waste", window, math.MaxInt)
	if err != nil {
		return nil, err
	}
	a := advice.Of(clients, names, waste)
	add := func(workload string, share float64, changes []report.Change) {
		for _, c := range changes {
			row := adviceRow{workload: workload, change: c.Kind, help: c.Text, waste: share, saved: c.SavedShare, savedPerSecond: c.SavedPerSecond}
			if c.Kind == report.ChangeNdots {
				row.change = fmt.Sprintf("ndots %d", c.Ndots)
			}
			rows = append(rows, row)
		}
	}
	for i := range a.Workloads {
		w := &a.Workloads[i]
		add(w.Namespace+"/"+w.Workload, w.WasteShare, w.Changes)
	}
	if a.Queries > 0 {
		add("(all)", float64(a.Waste)/float64(a.Queries), a.Changes)
	}
	rows = append(rows, aaaaRows(a)...)
	for i := range a.Truncated {
		for _, r := range a.Truncated[i].Remedies {
			rows = append(rows, adviceRow{workload: a.Truncated[i].Label(), change: r.Kind + ": truncated replies, never TCP", help: r.Reason})
		}
	}
	return rows, nil
}

// aaaaRows returns what `aaaa auto` saves, if it saves anything.
func aaaaRows(a *report.Advice) []adviceRow {
	if a.UnusableUpstream == 0 {
		return nil
	}
	share := float64(a.UnusableUpstream) / float64(a.Queries)
	return []adviceRow{{
		workload: "(without IPv6)", change: "aaaa auto", help: "in the Corefile: no upstream is asked for IPv6 addresses", saved: share, savedPerSecond: share * a.QueriesPerSecond,
	}}
}
