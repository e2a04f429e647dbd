package scale

import (
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// followTable is the table of what following the cluster takes, and delayTable that of the times from a change to the answer.
func (r *Report) followTable() string {
	return r.runs.Table([]string{"server"}, harness.ServerRows(r.Servers, ""),
		r.runs.Median("MiB after sync", "%.1f", clusterRun.memory),
		r.runs.Median("at most", "%.1f", clusterRun.peakMemory),
		r.runs.Median("at most / after", "%.2f", clusterRun.growth),
		r.runs.Median("watches", "%.0f", func(s clusterRun) float64 { return s.watches }),
		r.runs.Median("s to sync", "%.1f", clusterRun.syncSeconds),
		r.runs.Median("KiB received by then", "%.0f", clusterRun.firstReceived),
		r.runs.Median("sent", "%.0f", clusterRun.firstSent),
		r.runs.Median("KiB for 1,000 slice changes", "%.0f", clusterRun.changeReceived))
}

func (r *Report) delayTable() string {
	return r.runs.Table([]string{"server"}, harness.ServerRows(r.Servers, ""),
		r.runs.Median("p50 ms", "%.1f", clusterRun.p50),
		r.runs.Median("p99 ms", "%.1f", clusterRun.p99),
		r.runs.Median("p99 ms with the write", "%.1f", clusterRun.p99WithWrite),
		r.runs.Median("changes a second", "%.0f", func(s clusterRun) float64 { return s.rate }),
		r.runs.Most("not seen", "%.0f", func(s clusterRun) float64 { return float64(s.unseen) }))
}

// fleetTable is the table of what an agent costs the API server; empty if that was
// not measured.
func (r *Report) fleetTable() string {
	rows := [][]string{{"agent", "watches", "KiB for the first sync", "KiB for 1,000 slice changes", "API server's CPU µs per change", "least–most", "API server's live memory MiB"}}
	for _, c := range r.fleets {
		rows = append(rows, []string{c.kind, fmt.Sprintf("%.0f", c.watches), fmt.Sprintf("%.0f", c.firstKiB), fmt.Sprintf("%.0f", c.changeKiB),
			fmt.Sprintf("%.1f", c.cpu.Median), fmt.Sprintf("%.1f–%.1f", c.cpu.Least, c.cpu.Most), fmt.Sprintf("%.2f", c.memory.Median)})
	}
	return figures.Table(rows)
}

// The cluster for which costs are calculated: the most nodes that Kubernetes supports, and the
// slice changes of a rollout of 20 pods per second. Each pod is in two Services, whose slices
// change when the pod is created, when it becomes ready, and when the old pod is deleted.
const (
	fleetNodes      = 5000
	fleetChangeRate = 100
)

// fleetCost is what agents on fleet nodes cost an API server.
type fleetCost struct {
	watches  float64
	memory   float64 // GiB
	first    float64 // GiB, when all come at once
	outgoing float64 // MiB a second at fleetChangeRate
	cores    float64 // at fleetChangeRate
}

// cost works the fleet's costs out for the fleet.
func (c fleet) cost() fleetCost {
	return fleetCost{
		watches: c.watches * fleetNodes,
		memory:  c.memory.Median * fleetNodes / (1 << 10),
		first:   c.firstKiB * fleetNodes / (1 << 20),
		// KiB for a thousand changes, of which there are fleetChangeRate in a second.
		outgoing: c.changeKiB / 1000 * fleetChangeRate * fleetNodes / (1 << 10),
		cores:    c.cpu.Median * fleetChangeRate * fleetNodes / 1e6,
	}
}

// fleetCostTable returns the table of costs, or an empty string if there are none.
func (r *Report) fleetCostTable() string {
	rows := [][]string{{fmt.Sprintf("%d agents", fleetNodes), "watches", "API server's memory GiB", "GiB if all start at once",
		fmt.Sprintf("MiB/s at %d changes/s", fleetChangeRate), "cores at that rate"}}
	for _, c := range r.fleets {
		b := c.cost()
		rows = append(rows, []string{c.kind, fmt.Sprintf("%.0f", b.watches), fmt.Sprintf("%.1f", b.memory), fmt.Sprintf("%.1f", b.first),
			fmt.Sprintf("%.1f", b.outgoing), fmt.Sprintf("%.2f", b.cores)})
	}
	return figures.Table(rows)
}

// Tables are the tables beside those of workloads.
func (r *Report) Tables() []string {
	return []string{r.followTable(), r.delayTable(), r.fleetTable(), r.fleetCostTable()}
}

// Charts are the drawings about a large cluster.
func (r *Report) Charts() []figures.Chart {
	of := func(c figures.Chart, values ...func(clusterRun) float64) figures.Chart {
		for _, s := range r.Servers {
			row := figures.ChartRow{Label: shortName(s.Name)}
			for _, f := range values {
				if v, ok := r.runs.Spread(harness.Cell{Server: s.Name}, f); ok {
					row.Values = append(row.Values, v)
				}
			}
			if len(row.Values) == len(values) {
				c.Rows = append(c.Rows, row)
			}
		}
		return c
	}
	each := func(c figures.Chart, values ...func(fleet) figures.Spread) figures.Chart {
		for _, n := range r.fleets {
			row := figures.ChartRow{Label: shortName(n.kind)}
			for _, f := range values {
				row.Values = append(row.Values, f(n))
			}
			c.Rows = append(c.Rows, row)
		}
		return c
	}
	only := func(f func(fleet) float64) func(fleet) figures.Spread {
		return func(c fleet) figures.Spread { return figures.SpreadOf([]float64{f(c)}) }
	}
	var asked []harness.SeriesSource
	for _, w := range r.Workloads {
		label, _, _ := strings.Cut(w.QuerySet.Name, ",")
		asked = append(asked, harness.SeriesSource{Workload: w.Name, Label: label})
	}
	queries := r.FillSeries(figures.Chart{File: "scale-queries.svg", Title: "CPU per query in a large cluster, at saturation", Unit: "µs"}, harness.Sample.CPUPerQuery, asked...)
	return harness.NonEmpty([]figures.Chart{
		of(figures.Chart{File: "scale-memory.svg", Title: "Memory in a large cluster", Unit: "MiB", Series: []string{"after sync", "at most until then"}}, clusterRun.memory, clusterRun.peakMemory),
		of(figures.Chart{File: "scale-bytes.svg", Title: "Bytes from the API server", Unit: "KiB", Log: true, Series: []string{"first sync", "1,000 slice changes"}}, clusterRun.firstReceived, clusterRun.changeReceived),
		transpose(queries),
		each(figures.Chart{File: "scale-agents.svg", Title: "Bytes from the API server for each agent", Unit: "KiB", Log: true, Series: []string{"first sync", "1,000 slice changes"}},
			only(func(c fleet) float64 { return c.firstKiB }), only(func(c fleet) float64 { return c.changeKiB })),
		each(figures.Chart{File: "scale-cost.svg", Title: "API server's CPU for each slice change and agent", Unit: "µs"}, func(c fleet) figures.Spread { return c.cpu }),
		each(figures.Chart{File: "scale-live.svg", Title: "API server's live memory for each agent", Unit: "MiB"}, func(c fleet) figures.Spread { return c.memory }),
	})
}

// shortName is a row's name as short as a drawing has room for.
func shortName(name string) string {
	switch name {
	case byNode:
		return "nodens, node"
	case byCluster:
		return "nodens, cluster"
	default:
		return name
	}
}

// transpose makes the chart's rows its series and the other way round.
func transpose(c figures.Chart) figures.Chart {
	t := c
	t.Series, t.Rows = nil, nil
	for _, row := range c.Rows {
		t.Series = append(t.Series, shortName(row.Label))
	}
	for i, name := range c.Series {
		row := figures.ChartRow{Label: name}
		for _, old := range c.Rows {
			row.Values = append(row.Values, old.Values[i])
		}
		t.Rows = append(t.Rows, row)
	}
	if len(c.Rows) == 0 {
		t.Rows = nil
	}
	return t
}
