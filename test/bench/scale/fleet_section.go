package scale

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

//go:embed fleet.md.tmpl
var fleetText string

// Render returns the page about fleets.
func (r *FleetReport) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Starting, Changing, Ways, Losing, Seconds, Lines string
		First                                            string // what is said about first questions
		Shape                                            any
		Services, Endpoints, Rate, Fleet, Compared       int
		Length, Partition, Poll                          string
	}{
		SectionData: r.NewSectionData(r.Targets(), plots),
		Starting:    r.startTable(), Changing: r.steadyTable(), Ways: r.wayTable(), Losing: r.outageTable(), Seconds: r.secondsTable(), Lines: r.lineTable(),
		Shape: r.shape, Services: len(r.shape.Services()), Endpoints: r.shape.Endpoints(), Rate: fleetChangeRate, Fleet: fleetNodes, Compared: r.compared,
		Length: fleetChanges.String(), Partition: r.options.Partition.String(), Poll: outagePoll.String(),
		First: " Then each agent asks for a headless Service of a namespace that it does not use, one after the other, beside as many changes.",
	}
	return harness.OnePage("fleet.md", fleetText, data)
}

// Tables are the tables beside those of workloads.
func (r *FleetReport) Tables() []string {
	return []string{r.startTable(), r.steadyTable(), r.wayTable(), r.outageTable(), r.secondsTable(), r.lineTable()}
}

// rows returns a row for each kind and the workloads.
func fleetRows(workloads []string) (rows []harness.Row) {
	for _, k := range agentKinds() {
		for _, w := range workloads {
			rows = append(rows, harness.Row{Labels: []string{k.name, w}, At: harness.Cell{Server: k.name, Workload: w}})
		}
	}
	return rows
}

// sizeRows returns a row for each kind and size.
func (r *FleetReport) sizeRows() []harness.Row {
	var sizes []string
	for _, n := range r.options.Sizes {
		sizes = append(sizes, strconv.Itoa(n))
	}
	return fleetRows(sizes)
}

func (c cost) mib() float64        { return float64(c.received) / (1 << 20) }
func (c cost) seconds() float64    { return c.took.Seconds() }
func (c cost) cpuSeconds() float64 { return c.cpu.Seconds() }

func (r *FleetReport) startTable() string {
	return r.starts.Table([]string{"agent", "agents"}, r.sizeRows(),
		r.starts.Median("s until all are current", "%.1f", cost.seconds),
		r.starts.Median("requests", "%.0f", func(c cost) float64 { return float64(c.requests.requests) }),
		r.starts.Median("MiB received", "%.0f", cost.mib),
		r.starts.Median("API server's CPU s", "%.1f", cost.cpuSeconds))
}

// delay returns a percentile of the delays in milliseconds.
func (s steadyState) delay(part float64) float64 {
	return figures.Millis(figures.Percentile(s.delays, part))
}

func (r *FleetReport) steadyTable() string {
	agents := func(f func(steadyState, float64) float64) func(at harness.Cell) string {
		return func(at harness.Cell) string {
			n, _ := strconv.ParseFloat(at.Workload, 64)
			return fmt.Sprintf("%.1f", f(r.steady[at][0], n))
		}
	}
	return r.steady.Table([]string{"agent", "agents"}, r.sizeRows(),
		r.steady.Median("API server's MiB", "%.0f", func(s steadyState) float64 { return s.memory - r.alone.memory }),
		r.steady.Median("cores", "%.2f", func(s steadyState) float64 { return s.cores - r.alone.cores }),
		r.steady.Median("without changes", "%.2f", func(s steadyState) float64 { return s.idle - r.alone.idle }),
		harness.Column{Head: "KiB/s for an agent", Text: agents(func(s steadyState, n float64) float64 { return s.cost.kib() / s.cost.seconds() / n })},
		r.steady.Median("changes shown", "%.0f", func(s steadyState) float64 { return float64(len(s.delays)) }),
		r.steady.Median("p99 ms", "%.0f", func(s steadyState) float64 { return s.delay(0.99) }),
		r.steady.Median("longest ms", "%.0f", func(s steadyState) float64 { return s.delay(1) }),
		r.steady.Median("missed", "%.0f", func(s steadyState) float64 { return float64(s.missed) }),
		r.steady.Median("first question p50 ms", "%.1f", func(s steadyState) float64 { return figures.Millis(figures.Percentile(s.first, 0.5)) }),
		r.steady.Median("p99 ms", "%.1f", func(s steadyState) float64 { return figures.Millis(figures.Percentile(s.first, 0.99)) }))
}

// wayTable is the table of the ways to start.
func (r *FleetReport) wayTable() string {
	rows := [][]string{{"start of one agent", "agents", "lists", "KiB received", "of a list's", "API server's CPU ms", "of a list's", "s until it is current"}}
	whole := r.ways[byList]
	for _, way := range []string{byList, byUpgrade, byCrash} {
		list := r.ways[way]
		if len(list) == 0 {
			continue
		}
		rows = append(rows, []string{way, strconv.Itoa(len(list)),
			fmt.Sprintf("%.1f", mean(list, func(c cost) float64 { return float64(c.requests.lists) })),
			fmt.Sprintf("%.1f", mean(list, cost.kib)), fmt.Sprintf("%.2f %%", 100*mean(list, cost.kib)/mean(whole, cost.kib)),
			fmt.Sprintf("%.2f", mean(list, cost.cpuMillis)), fmt.Sprintf("%.1f %%", 100*mean(list, cost.cpuMillis)/mean(whole, cost.cpuMillis)),
			fmt.Sprintf("%.2f", mean(list, cost.seconds))})
	}
	return figures.Table(rows)
}

// events are what a fleet goes through.
var events = []string{restarted, partitioned}

func (r *FleetReport) outageTable() string {
	return r.outages.Table([]string{"agent", "what happens"}, fleetRows(events),
		r.outages.Median("lasts s", "%.1f", func(o outageRun) float64 { return o.lasted.Seconds() }),
		r.outages.Median("s from then until all are current", "%.1f", func(o outageRun) float64 { return o.cost.seconds() }),
		r.outages.Median("most requests/s", "%.0f", outageRun.most),
		r.outages.Median("lists in all", "%.0f", outageRun.lists),
		r.outages.Median("MiB since the return", "%.0f", func(o outageRun) float64 { return o.cost.mib() }),
		r.outages.Median("API server's CPU s", "%.1f", func(o outageRun) float64 { return o.cost.cpuSeconds() }),
		r.outages.Median("failed requests afterwards", "%.0f", func(o outageRun) float64 { return float64(o.after.failed) }))
}

// lists is how many lists there were, most of them perhaps before the API server said that it is ready.
func (o outageRun) lists() float64 {
	lists := 0
	for _, s := range o.series {
		lists += s.lists
	}
	return float64(lists)
}

// most is the most requests in a second.
func (o outageRun) most() float64 {
	most := 0
	for _, s := range o.series {
		most = max(most, s.requests)
	}
	return float64(most)
}

// secondsTable is the table of requests by the second.
func (r *FleetReport) secondsTable() string {
	rows := [][]string{{"agent", "what happens", "requests in each second, from the loss on; the second of the return in bold"}}
	for _, row := range fleetRows(events) {
		for _, o := range r.outages[row.At] {
			var text []string
			for i, s := range o.series {
				word := strconv.Itoa(s.requests)
				if i == o.back {
					word = "**" + word + "**"
				}
				text = append(text, word)
			}
			rows = append(rows, append(slices.Clone(row.Labels), strings.Join(text, " ")))
		}
	}
	return figures.Table(rows)
}

// line is the straight line through points that is nearest to them.
type line struct {
	at, slope float64 // the value at 0, and the change by one
	residual  float64 // the greatest distance of a point
	spread    float64 // the standard deviation of the points around it
	n         float64
	mean, sum float64 // of the places, and the squares of their distances from the mean
}

// lineThrough returns the line through points at the places x.
func lineThrough(x, y []float64) line {
	l := line{n: float64(len(x))}
	meanY := 0.0
	for i := range x {
		l.mean += x[i] / l.n
		meanY += y[i] / l.n
	}
	for i := range x {
		l.sum += (x[i] - l.mean) * (x[i] - l.mean)
		l.slope += (x[i] - l.mean) * (y[i] - meanY)
	}
	l.slope /= l.sum
	l.at = meanY - l.slope*l.mean
	squares := 0.0
	for i := range x {
		d := y[i] - l.at - l.slope*x[i]
		l.residual = max(l.residual, math.Abs(d))
		squares += d * d
	}
	l.spread = math.Sqrt(squares / max(1, l.n-2))
	return l
}

// value returns the line's value at a place, and the standard error of that.
func (l line) value(x float64) (value, within float64) {
	return l.at + l.slope*x, l.spread * math.Sqrt(1/l.n+(x-l.mean)*(x-l.mean)/l.sum)
}

// quantities are what lines are drawn through.
var quantities = []struct {
	name, unit string
	of         func(steadyState) float64
	scale      float64
}{
	{"live memory", "GiB", func(s steadyState) float64 { return s.memory }, 1 << 10},
	{"CPU without changes", "cores", func(s steadyState) float64 { return s.idle }, 1},
	{"CPU at " + strconv.Itoa(fleetChangeRate) + " changes/s", "cores", func(s steadyState) float64 { return s.cores }, 1},
}

// lineOf returns the line of a quantity through the sizes of the default kind and the API server without agents.
func (r *FleetReport) lineOf(f func(steadyState) float64) (l line, ok bool) {
	x, y := []float64{0}, []float64{f(r.alone)}
	for _, n := range r.options.Sizes {
		for _, s := range r.steady[harness.Cell{Server: byNode, Workload: strconv.Itoa(n)}] {
			x, y = append(x, float64(n)), append(y, f(s))
		}
	}
	if len(x) < 3 {
		return line{}, false
	}
	return lineThrough(x, y), true
}

// lineTable is the table of the lines.
func (r *FleetReport) lineTable() string {
	rows := [][]string{{"API server's", "without agents", "for each agent", "farthest point", fmt.Sprintf("%d agents", fleetNodes), "standard error"}}
	for _, q := range quantities {
		l, ok := r.lineOf(q.of)
		if !ok {
			continue
		}
		value, within := l.value(fleetNodes)
		rows = append(rows, []string{q.name, fmt.Sprintf("%.3f %s", l.at/q.scale, q.unit), fmt.Sprintf("%.5f", l.slope/q.scale), fmt.Sprintf("%.3f", l.residual/q.scale),
			fmt.Sprintf("%.2f", value/q.scale), fmt.Sprintf("%.2f", within/q.scale)})
	}
	return figures.Table(rows)
}

// The limits for fleets.
const (
	maxResumed     = 0.03 // of the bytes and the CPU time of a list
	maxReturn      = 10   // seconds
	maxFleetMemory = 2    // GiB
	maxFleetCores  = 2
)

// Targets returns the section's targets.
func (r *FleetReport) Targets() []harness.Target {
	var list []harness.Target
	for _, way := range []string{byUpgrade, byCrash} {
		list = append(list,
			harness.Target{What: way + ": bytes, relative to a start without a saved view", Limit: maxResumed, Of: r.ratioOf(way, cost.kib)},
			harness.Target{What: way + ": API server's CPU, relative to a start without a saved view", Limit: maxResumed, Of: r.ratioOf(way, cost.cpuMillis)})
	}
	at := func(event string) harness.Cell { return harness.Cell{Server: byNode, Workload: event} }
	largest := harness.Cell{Server: byNode, Workload: strconv.Itoa(slices.Max(r.options.Sizes))}
	list = append(list, harness.Target{What: "agents whose answers are others than their predecessor's", Of: []harness.TargetValue{{Find: func() (figures.Spread, bool) {
		return figures.SpreadOf([]float64{float64(r.different)}), r.compared > 0
	}}}}, harness.Target{What: "changes that an agent has missed", Of: []harness.TargetValue{r.steady.Value("", largest, func(s steadyState) float64 { return float64(s.missed) })}},
		harness.Target{What: "p99 of the first question for a headless Service of a new namespace, beside changes", Limit: 100, Unit: "ms", Of: []harness.TargetValue{
			r.steady.Value("", largest, func(s steadyState) float64 { return figures.Millis(figures.Percentile(s.first, 0.99)) })}})
	for _, event := range events {
		list = append(list,
			harness.Target{What: event + ": from the return until all agents are current", Limit: maxReturn, Unit: "s", Of: []harness.TargetValue{r.outages.Value("", at(event), func(o outageRun) float64 { return o.cost.seconds() })}},
			harness.Target{What: event + ": requests that fail after that", Of: []harness.TargetValue{r.outages.Value("", at(event), func(o outageRun) float64 { return float64(o.after.failed) })}})
	}
	for i, limit := range map[int]float64{0: maxFleetMemory, 2: maxFleetCores} {
		q := quantities[i]
		list = append(list, harness.Target{What: fmt.Sprintf("%d agents: API server's %s", fleetNodes, q.name), Limit: limit, Unit: q.unit, Of: []harness.TargetValue{{Find: func() (figures.Spread, bool) {
			l, ok := r.lineOf(q.of)
			value, within := l.value(fleetNodes)
			return figures.Spread{Median: value / q.scale, Least: (value - within) / q.scale, Most: (value + within) / q.scale}, ok
		}}}})
	}
	return list
}

// ratioOf is f of a way relative to that of a start without a saved view.
func (r *FleetReport) ratioOf(way string, f func(cost) float64) []harness.TargetValue {
	return []harness.TargetValue{{Find: func() (figures.Spread, bool) {
		whole := mean(r.ways[byList], f)
		return figures.SpreadBy(r.ways[way], func(c cost) float64 { return f(c) / whole })
	}}}
}
