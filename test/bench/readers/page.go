package readers

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// Report is the result.
type Report struct {
	*harness.Report
	// values are what the benchmarks report, by unit. The server of a cell is the name of the benchmark without "Benchmark".
	values map[string]harness.Results[float64]
}

func newReport(r *harness.Report) *Report { return &Report{r, map[string]harness.Results[float64]{}} }

// The units.
const (
	took   = "ns/op"
	waits  = "lock-waits/op"
	allocs = "allocs/op"
	uneven = "busiest/mean"
)

// results returns the values of a unit.
func (r *Report) results(unit string) harness.Results[float64] {
	if r.values[unit] == nil {
		r.values[unit] = harness.Results[float64]{}
	}
	return r.values[unit]
}

// suffixes are what the names of benchmarks end with, by the number of readers.
var suffixes = []struct {
	readers int
	suffix  string
}{{1, ""}, {2, "-2"}, {16, "-16"}}

// hot returns the cell of a benchmark of one name.
func hot(way, suffix string) harness.Cell { return harness.Cell{Server: "HotName/" + way + suffix} }

// spread returns the cell of a benchmark of how even readers are loaded.
func spread(way string) harness.Cell { return harness.Cell{Server: "Spread/" + way} }

const (
	// maxKept limits the time of a hit from a kept reply relative to the query path's.
	maxKept = 1
	// maxUneven limits the packets of the busiest socket relative to the mean.
	maxUneven = 1.2
)

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	kept := harness.Target{What: "time of a hit from a kept reply, relative to the query path", Limit: maxKept, Below: true}
	for _, s := range suffixes {
		kept.Of = append(kept.Of, r.results(took).RatioValue(readersText(s.readers), hot("kept", s.suffix), hot("path", s.suffix), harness.Plain))
	}
	return []harness.Target{kept, {
		What: "packets of the busiest of 16 sockets, relative to the mean", Limit: maxUneven,
		Of: []harness.TargetValue{r.results(uneven).Value("spread at random", spread("random"), harness.Plain)},
	}}
}

func readersText(n int) string {
	if n == 1 {
		return "1 reader"
	}
	return fmt.Sprintf("%d readers", n)
}

// Tables returns the tables of hits and of sockets.
func (r *Report) Tables() []string { return []string{r.hits(), r.sockets()} }

// perMillion scales a number per hit.
const perMillion = 1e6

// hits is the table of the times of hits.
func (r *Report) hits() string {
	var rows []harness.Row
	for _, s := range suffixes {
		rows = append(rows, harness.Row{Labels: []string{fmt.Sprint(s.readers), "the query path"}, At: hot("path", s.suffix)},
			harness.Row{Labels: []string{fmt.Sprint(s.readers), "a kept reply"}, At: hot("kept", s.suffix)})
	}
	times := r.results(took)
	relative := times.Relative(harness.Plain, func(at harness.Cell) harness.Cell {
		if suffix, kept := strings.CutPrefix(at.Server, hot("kept", "").Server); kept {
			return hot("path", suffix)
		}
		return harness.Cell{}
	})
	return times.Table([]string{"readers", "answered by"}, rows,
		times.Median("ns per hit", "%.0f", harness.Plain), times.Range("%.0f", harness.Plain), relative.MedianRange("relative to the path", "%.2f", harness.Plain),
		r.results(waits).MedianRange("waits for a lock per million hits", "%.1f", func(v float64) float64 { return v * perMillion }),
		r.results(allocs).Median("allocations per hit", "%.0f", harness.Plain))
}

// sockets is the table of how evenly clients load sockets.
func (r *Report) sockets() string {
	busiest := r.results(uneven)
	return busiest.Table([]string{"the socket of a packet"}, []harness.Row{
		{Labels: []string{"by the kernel's hash of the client's address and port"}, At: spread("hash")}, {Labels: []string{"at random, as under load"}, At: spread("random")},
	}, busiest.Median("packets of the busiest socket, relative to the mean", "%.2f", harness.Plain), busiest.Range("%.2f", harness.Plain))
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about readers.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Hits, Sockets string
	}{r.NewSectionData(r.Targets(), plots), r.hits(), r.sockets()}
	return harness.OnePage("readers.md", sectionText, data)
}
