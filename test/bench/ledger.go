package main

import (
	"fmt"
	"strings"
)

// runColumn is a column of the table of stays.
type runColumn struct {
	head, format string
	f            func(clusterRun) float64
	// worst shows the greatest and not the median.
	worst bool
}

var (
	followColumns = []runColumn{
		{"MiB after sync", "%.1f", clusterRun.memory, false},
		{"at most", "%.1f", clusterRun.peakMemory, false},
		{"at most / after", "%.2f", clusterRun.growth, false},
		{"watches", "%.0f", func(s clusterRun) float64 { return s.watches }, false},
		{"s to sync", "%.1f", clusterRun.syncSeconds, false},
		{"KiB received by then", "%.0f", clusterRun.firstReceived, false},
		{"sent", "%.0f", clusterRun.firstSent, false},
		{"KiB for 1,000 slice changes", "%.0f", clusterRun.changeReceived, false},
	}
	delayColumns = []runColumn{
		{"p50 ms", "%.1f", clusterRun.p50, false},
		{"p99 ms", "%.1f", clusterRun.p99, false},
		{"p99 ms with the write", "%.1f", clusterRun.p99WithWrite, false},
		{"changes a second", "%.0f", func(s clusterRun) float64 { return s.rate }, false},
		{"not seen", "%.0f", func(s clusterRun) float64 { return float64(s.unseen) }, true},
	}
)

// runTable is a table of the stays; empty if there are none.
func (r *scaleReport) runTable(columns []runColumn) string {
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		row := []string{s.name}
		for _, c := range columns {
			v, ok := r.runSpread(s.name, c.f)
			if !ok {
				break
			}
			if c.worst {
				v.median = v.most
			}
			row = append(row, fmt.Sprintf(c.format, v.median))
		}
		if len(row) == len(rows[0]) {
			rows = append(rows, row)
		}
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// fleetTable is the table of what an agent costs the API server; empty if that was
// not measured.
func (r *scaleReport) fleetTable() string {
	rows := [][]string{{"an agent", "watches", "KiB for the first sync", "KiB for 1,000 slice changes", "API server's CPU µs per change", "least–most", "its live memory MiB"}}
	for _, c := range r.fleets {
		rows = append(rows, []string{c.kind, fmt.Sprintf("%.0f", c.watches), fmt.Sprintf("%.0f", c.firstKiB), fmt.Sprintf("%.0f", c.changeKiB),
			fmt.Sprintf("%.1f", c.cpu.median), fmt.Sprintf("%.1f–%.1f", c.cpu.least, c.cpu.most), fmt.Sprintf("%.2f", c.memory.median)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// What the costs are worked out for: as many nodes as Kubernetes says that it
// stands, and slice changes as one of its rollouts makes them: twenty pods a second,
// each in two Services, each of which changes when the pod comes, when it is ready,
// and when the old one goes.
const (
	fleetNodes      = 5000
	fleetChangeRate = 100
)

// fleetCost is what agents on fleet nodes cost an API server.
type fleetCost struct {
	watches  float64
	memory   float64 // GiB
	first    float64 // GiB, when all come at once
	outgoing float64 // MiB a second at fleetRate
	cores    float64 // at fleetRate
}

// cost works the crowd's costs out for the fleet.
func (c fleet) cost() fleetCost {
	return fleetCost{
		watches: c.watches * fleetNodes,
		memory:  c.memory.median * fleetNodes / (1 << 10),
		first:   c.firstKiB * fleetNodes / (1 << 20),
		// KiB for a thousand changes, of which there are fleetRate in a second.
		outgoing: c.changeKiB / 1000 * fleetChangeRate * fleetNodes / (1 << 10),
		cores:    c.cpu.median * fleetChangeRate * fleetNodes / 1e6,
	}
}

// fleetCostTable is the table of the bills; empty if there are none.
func (r *scaleReport) fleetCostTable() string {
	rows := [][]string{{fmt.Sprintf("%d agents", fleetNodes), "watches", "API server's memory GiB", "GiB if all start at once",
		fmt.Sprintf("MiB/s at %d changes/s", fleetChangeRate), "cores at that rate"}}
	for _, c := range r.fleets {
		b := c.cost()
		rows = append(rows, []string{c.kind, fmt.Sprintf("%.0f", b.watches), fmt.Sprintf("%.1f", b.memory), fmt.Sprintf("%.1f", b.first),
			fmt.Sprintf("%.1f", b.outgoing), fmt.Sprintf("%.2f", b.cores)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// Tables are the tables beside those of workloads.
func (r *scaleReport) Tables() []string {
	return []string{r.runTable(followColumns), r.runTable(delayColumns), r.fleetTable(), r.fleetCostTable()}
}

// Charts are the drawings about a large cluster.
func (r *scaleReport) Charts() []chart {
	of := func(c chart, values ...func(clusterRun) float64) chart {
		for _, s := range r.servers {
			row := chartRow{label: shortName(s.name)}
			for _, f := range values {
				if v, ok := r.runSpread(s.name, f); ok {
					row.values = append(row.values, v)
				}
			}
			if len(row.values) == len(values) {
				c.rows = append(c.rows, row)
			}
		}
		return c
	}
	each := func(c chart, values ...func(fleet) spread) chart {
		for _, n := range r.fleets {
			row := chartRow{label: shortName(n.kind)}
			for _, f := range values {
				row.values = append(row.values, f(n))
			}
			c.rows = append(c.rows, row)
		}
		return c
	}
	only := func(f func(fleet) float64) func(fleet) spread {
		return func(c fleet) spread { return spreadOf([]float64{f(c)}) }
	}
	var asked []seriesSource
	for _, w := range r.workloads {
		label, _, _ := strings.Cut(w.querySet.name, ",")
		asked = append(asked, seriesSource{w.name, label})
	}
	queries := r.fillSeries(chart{file: "scale-queries.svg", title: "CPU per query in a large cluster, at saturation", unit: "µs"}, sample.cpuPerQuery, asked...)
	return nonEmpty([]chart{
		of(chart{file: "scale-memory.svg", title: "Memory in a large cluster", unit: "MiB", series: []string{"after sync", "at most until then"}}, clusterRun.memory, clusterRun.peakMemory),
		of(chart{file: "scale-bytes.svg", title: "Bytes from the API server", unit: "KiB", log: true, series: []string{"first sync", "1,000 slice changes"}}, clusterRun.firstReceived, clusterRun.changeReceived),
		transpose(queries),
		each(chart{file: "scale-agents.svg", title: "Bytes from the API server for each agent", unit: "KiB", log: true, series: []string{"first sync", "1,000 slice changes"}},
			only(func(c fleet) float64 { return c.firstKiB }), only(func(c fleet) float64 { return c.changeKiB })),
		each(chart{file: "scale-cost.svg", title: "API server's CPU for each slice change and agent", unit: "µs"}, func(c fleet) spread { return c.cpu }),
		each(chart{file: "scale-live.svg", title: "API server's live memory for each agent", unit: "MiB"}, func(c fleet) spread { return c.memory }),
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
func transpose(c chart) chart {
	t := c
	t.series, t.rows = nil, nil
	for _, row := range c.rows {
		t.series = append(t.series, shortName(row.label))
	}
	for i, name := range c.series {
		row := chartRow{label: name}
		for _, old := range c.rows {
			row.values = append(row.values, old.values[i])
		}
		t.rows = append(t.rows, row)
	}
	if len(c.rows) == 0 {
		t.rows = nil
	}
	return t
}
