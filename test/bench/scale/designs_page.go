package scale

import (
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

//go:embed designs.md.tmpl
var designsText string

// all returns the cell of a design with all agents.
func (r *DesignReport) all(design string) harness.Cell {
	return harness.Cell{Server: design, Workload: strconv.Itoa(r.agents[len(r.agents)-1])}
}

// rows returns a row for each design from the one with the number first on; number 0 watches no slices.
func (r *DesignReport) rows(first int) (rows []harness.Row) {
	for _, d := range watchDesigns()[first:] {
		rows = append(rows, harness.Row{Labels: []string{d.name}, At: r.all(d.name)})
	}
	return rows
}

// few returns the cell with few agents.
func (r *DesignReport) few(at harness.Cell) harness.Cell {
	return harness.Cell{Server: at.Server, Workload: strconv.Itoa(r.agents[0])}
}

// costTable is what an agent costs the API server.
func (r *DesignReport) costTable() string {
	few, all := strconv.Itoa(r.agents[0]), strconv.Itoa(r.agents[len(r.agents)-1])
	mixed := func(s designRun) float64 { return s.mixed.cpu }
	memory := func(s designRun) float64 { return s.memory }
	return r.runs.Table([]string{"design"}, r.rows(0),
		r.runs.Median("watches", "%.0f", func(s designRun) float64 { return s.watches }),
		r.runs.MedianRange("live MiB, "+few+" agents", "%.2f", memory).Of(r.few),
		r.runs.MedianRange("live MiB, "+all, "%.2f", memory),
		r.runs.MedianRange("µs per change, "+few, "%.1f", mixed).Of(r.few),
		r.runs.MedianRange("µs per change, "+all, "%.1f", mixed),
		r.runs.Median("events per change", "%.3f", func(s designRun) float64 { return s.mixed.events }),
		r.runs.Median("KiB per 1,000 changes", "%.0f", func(s designRun) float64 { return s.mixed.kib }),
		r.runs.Median("KiB for the first sync", "%.0f", func(s designRun) float64 { return s.firstKiB }))
}

// eventTable is what takes the API server's time.
func (r *DesignReport) eventTable() string {
	return r.runs.Table([]string{"design"}, r.rows(1),
		r.runs.MedianRange("µs per change elsewhere", "%.1f", func(s designRun) float64 { return s.elsewhere.cpu }),
		r.runs.Median("events", "%.2f", func(s designRun) float64 { return s.elsewhere.events }),
		r.runs.MedianRange("µs per change of what is asked for", "%.1f", func(s designRun) float64 { return s.own.cpu }),
		r.runs.Median("events", "%.2f", func(s designRun) float64 { return s.own.events }),
		r.runs.MedianRange("µs per event", "%.0f", designRun.perEvent))
}

// perEvent is what an event costs that is sent, in µs: what a change of an own slice costs more than one elsewhere.
// If both are sent alike, it is the cost of both.
func (r designRun) perEvent() float64 {
	if more := r.own.events - r.elsewhere.events; more > 0.01 {
		return (r.own.cpu - r.elsewhere.cpu) / more
	}
	return r.own.cpu / r.own.events
}

// questionTable is how long first questions take, and what is missed.
func (r *DesignReport) questionTable() string {
	at := func(list func(designRun) []time.Duration, part float64) func(designRun) float64 {
		return func(s designRun) float64 { return figures.Millis(figures.Percentile(list(s), part)) }
	}
	quiet := func(s designRun) []time.Duration { return s.quiet }
	busy := func(s designRun) []time.Duration { return s.busy }
	return r.runs.Table([]string{"design"}, r.rows(1),
		r.runs.Median("quiet: p50 ms", "%.1f", at(quiet, 0.5)), r.runs.Most("p99, worst round", "%.1f", at(quiet, 0.99)),
		r.runs.Median("busy: p50 ms", "%.1f", at(busy, 0.5)), r.runs.Most("p99, worst round", "%.1f", at(busy, 0.99)),
		r.runs.Sum("changes due", func(s designRun) float64 { return float64(s.due) }),
		r.runs.Sum("missed", func(s designRun) float64 { return float64(s.missed) }))
}

// memoryGiB and cores are what agents on all nodes of the largest cluster cost.
func (r designRun) memoryGiB() float64 { return r.memory * fleetNodes / (1 << 10) }
func (r designRun) cores() float64     { return r.mixed.cpu * fleetChangeRate * fleetNodes / 1e6 }

// fleetTable is what follows for the largest cluster.
func (r *DesignReport) fleetTable() string {
	return r.runs.Table([]string{fmt.Sprintf("%d agents", fleetNodes)}, r.rows(1),
		r.runs.Median("watches", "%.0f", func(s designRun) float64 { return s.watches * fleetNodes }),
		r.runs.MedianRange("API server's memory GiB", "%.1f", designRun.memoryGiB),
		r.runs.MedianRange("from few agents", "%.1f", designRun.memoryGiB).Of(r.few),
		r.runs.MedianRange(fmt.Sprintf("cores at %d changes/s", fleetChangeRate), "%.2f", designRun.cores),
		r.runs.MedianRange("from few agents", "%.2f", designRun.cores).Of(r.few),
		r.runs.Median("MiB/s at that rate", "%.1f", func(s designRun) float64 {
			return s.mixed.kib / 1000 * fleetChangeRate * fleetNodes / (1 << 10)
		}))
}

// listTable is what lists of Services cost.
func (r *DesignReport) listTable() string {
	var rows []harness.Row
	for _, f := range listForms() {
		rows = append(rows, harness.Row{Labels: []string{f.name}, At: harness.Cell{Server: f.name}})
	}
	return r.lists.Table([]string{"list of all Services"}, rows,
		r.lists.Median("KiB", "%.0f", func(s listRun) float64 { return s.kib }),
		r.lists.MedianRange("API server's CPU ms", "%.0f", func(s listRun) float64 { return figures.Millis(s.cpu) }),
		r.lists.Median("ms until it is complete", "%.0f", func(s listRun) float64 { return figures.Millis(s.took) }))
}

// Tables returns all tables.
func (r *DesignReport) Tables() []string {
	return []string{r.costTable(), r.fleetTable(), r.eventTable(), r.questionTable(), r.listTable()}
}

// maxQuestion is the limit for a first question, in milliseconds.
const maxQuestion = 100

// Targets returns the section's targets.
func (r *DesignReport) Targets() []harness.Target {
	memory := harness.Target{What: fmt.Sprintf("API server's memory for %d agents", fleetNodes), Limit: maxFleetMemory, Unit: "GiB"}
	cores := harness.Target{What: fmt.Sprintf("API server's cores for %d agents at %d slice changes a second", fleetNodes, fleetChangeRate), Limit: maxFleetCores}
	question := harness.Target{What: "p99 of the first question for a headless Service of a new namespace", Limit: maxQuestion, Unit: "ms"}
	missed := harness.Target{What: "changes missed, renewed watches included"}
	for _, name := range []string{askedNames} {
		at := r.all(name)
		memory.Of = append(memory.Of, r.runs.Value(name, at, designRun.memoryGiB))
		cores.Of = append(cores.Of, r.runs.Value(name, at, designRun.cores))
		question.Of = append(question.Of, r.runs.WorstValue(name, at, func(s designRun) float64 {
			return figures.Millis(max(figures.Percentile(s.quiet, 0.99), figures.Percentile(s.busy, 0.99)))
		}))
		missed.Of = append(missed.Of, r.runs.WorstValue(name, at, func(s designRun) float64 { return float64(s.missed) }))
	}
	return []harness.Target{memory, cores, question, missed}
}

// Render returns the page about ways to watch.
func (r *DesignReport) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Shape                             any
		Services, Few, All, Used, Changes int
		Nodes, Rate                       int
		Designs                           []watchDesignText
		Costs, Fleet, Events              string
		Questions, Lists                  string
	}{
		SectionData: r.NewSectionData(r.Targets(), plots), Shape: r.shape, Services: len(r.shape.Services()),
		Few: r.agents[0], All: r.agents[len(r.agents)-1], Used: r.shape.Namespaces / 2, Changes: designChanges,
		Nodes: fleetNodes, Rate: fleetChangeRate,
		Costs: r.costTable(), Fleet: r.fleetTable(), Events: r.eventTable(), Questions: r.questionTable(), Lists: r.listTable(),
	}
	for _, d := range watchDesigns() {
		data.Designs = append(data.Designs, watchDesignText{d.name, d.what, d.times})
	}
	return harness.OnePage("watch-designs.md", designsText, data)
}

// watchDesignText is a design on the page.
type watchDesignText struct {
	Name, What string
	Times      int // 0 is once
}
