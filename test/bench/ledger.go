package main

import (
	"fmt"
	"strings"
)

// entryOf is a column of the table of stays.
type entryOf struct {
	head, format string
	f            func(stay) float64
	// worst shows the greatest and not the median.
	worst bool
}

var (
	following = []entryOf{
		{"MiB after sync", "%.1f", stay.resident, false},
		{"at most", "%.1f", stay.most, false},
		{"at most / after", "%.2f", stay.growth, false},
		{"watches", "%.0f", func(s stay) float64 { return s.watches }, false},
		{"s to sync", "%.1f", stay.synced, false},
		{"KiB received by then", "%.0f", stay.initial, false},
		{"sent", "%.0f", stay.sentFirst, false},
		{"KiB for 1,000 slice changes", "%.0f", stay.news, false},
	}
	showing = []entryOf{
		{"p50 ms", "%.1f", stay.usual, false},
		{"p99 ms", "%.1f", stay.late, false},
		{"p99 ms with the write", "%.1f", stay.all, false},
		{"changes a second", "%.0f", func(s stay) float64 { return s.rate }, false},
		{"not seen", "%.0f", func(s stay) float64 { return float64(s.unseen) }, true},
	}
)

// stayTable is a table of the stays; empty if there are none.
func (r *report) stayTable(columns []entryOf) string {
	rows := [][]string{{"server"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.head)
	}
	for _, s := range r.servers {
		row := []string{s.name}
		for _, c := range columns {
			v, ok := r.stayed(s.name, c.f)
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

// crowdTable is the table of what an agent costs the API server; empty if that was
// not measured.
func (r *report) crowdTable() string {
	rows := [][]string{{"an agent", "watches", "KiB for the first sync", "KiB for 1,000 slice changes", "API server's CPU µs per change", "least–most", "its live memory MiB"}}
	for _, c := range r.scale.crowds {
		rows = append(rows, []string{c.kind, fmt.Sprintf("%.0f", c.watches), fmt.Sprintf("%.0f", c.first), fmt.Sprintf("%.0f", c.news),
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
	fleet     = 5000
	fleetRate = 100
)

// bill is what agents on fleet nodes cost an API server.
type bill struct {
	watches  float64
	memory   float64 // GiB
	first    float64 // GiB, when all come at once
	outgoing float64 // MiB a second at fleetRate
	cores    float64 // at fleetRate
}

// bill works the crowd's costs out for the fleet.
func (c crowd) bill() bill {
	return bill{
		watches: c.watches * fleet,
		memory:  c.memory.median * fleet / (1 << 10),
		first:   c.first * fleet / (1 << 20),
		// KiB for a thousand changes, of which there are fleetRate in a second.
		outgoing: c.news / 1000 * fleetRate * fleet / (1 << 10),
		cores:    c.cpu.median * fleetRate * fleet / 1e6,
	}
}

// fleetTable is the table of the bills; empty if there are none.
func (r *report) fleetTable() string {
	rows := [][]string{{fmt.Sprintf("%d agents", fleet), "watches", "API server's memory GiB", "GiB if all start at once",
		fmt.Sprintf("MiB/s at %d changes/s", fleetRate), "cores at that rate"}}
	for _, c := range r.scale.crowds {
		b := c.bill()
		rows = append(rows, []string{c.kind, fmt.Sprintf("%.0f", b.watches), fmt.Sprintf("%.1f", b.memory), fmt.Sprintf("%.1f", b.first),
			fmt.Sprintf("%.1f", b.outgoing), fmt.Sprintf("%.2f", b.cores)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// scaleTables are the tables about a large cluster but for those of the prices;
// those that were not measured are empty.
func (r *report) scaleTables() []string {
	if r.scale == nil {
		return nil
	}
	return []string{r.stayTable(following), r.stayTable(showing), r.crowdTable(), r.fleetTable()}
}

// scaleCharts are the drawings about a large cluster.
func (r *report) scaleCharts() []chart {
	of := func(c chart, values ...func(stay) float64) chart {
		for _, s := range r.servers {
			row := bar{label: brief(s.name)}
			for _, f := range values {
				if v, ok := r.stayed(s.name, f); ok {
					row.values = append(row.values, v)
				}
			}
			if len(row.values) == len(values) {
				c.rows = append(c.rows, row)
			}
		}
		return c
	}
	each := func(c chart, values ...func(crowd) spread) chart {
		for _, n := range r.scale.crowds {
			row := bar{label: brief(n.kind)}
			for _, f := range values {
				row.values = append(row.values, f(n))
			}
			c.rows = append(c.rows, row)
		}
		return c
	}
	only := func(f func(crowd) float64) func(crowd) spread {
		return func(c crowd) spread { return spreadOf([]float64{f(c)}) }
	}
	var asked []mark
	for _, w := range r.workloads {
		label, _, _ := strings.Cut(w.questions.name, ",")
		asked = append(asked, mark{w.name, label})
	}
	queries := r.marks(chart{file: "scale-queries.svg", title: "CPU per query in a large cluster, at saturation", unit: "µs"}, sample.price, asked...)
	return drawn([]chart{
		of(chart{file: "scale-memory.svg", title: "Memory in a large cluster", unit: "MiB", series: []string{"after sync", "at most until then"}}, stay.resident, stay.most),
		of(chart{file: "scale-bytes.svg", title: "Bytes from the API server", unit: "KiB", log: true, series: []string{"first sync", "1,000 slice changes"}}, stay.initial, stay.news),
		turned(queries),
		each(chart{file: "scale-agents.svg", title: "Bytes from the API server for each agent", unit: "KiB", log: true, series: []string{"first sync", "1,000 slice changes"}},
			only(func(c crowd) float64 { return c.first }), only(func(c crowd) float64 { return c.news })),
		each(chart{file: "scale-cost.svg", title: "API server's CPU for each slice change and agent", unit: "µs"}, func(c crowd) spread { return c.cpu }),
		each(chart{file: "scale-live.svg", title: "API server's live memory for each agent", unit: "MiB"}, func(c crowd) spread { return c.memory }),
	})
}

// brief is a row's name as short as a drawing has room for.
func brief(name string) string {
	switch name {
	case byNode:
		return "nodens, node"
	case byCluster:
		return "nodens, cluster"
	default:
		return name
	}
}

// turned makes the chart's rows its series and the other way round.
func turned(c chart) chart {
	t := c
	t.series, t.rows = nil, nil
	for _, row := range c.rows {
		t.series = append(t.series, brief(row.label))
	}
	for i, name := range c.series {
		row := bar{label: name}
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
