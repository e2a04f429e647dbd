package readers

import (
	_ "embed"
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// Report is the result.
type Report struct {
	*harness.Report
	// Values are by the name of the benchmark without "Benchmark".
	Values map[string]Values
}

// suffixes are what the names of benchmarks end with, by the number of readers.
var suffixes = []struct {
	readers int
	suffix  string
}{{1, ""}, {2, "-2"}, {16, "-16"}}

// hot returns the name of a benchmark of one name.
func hot(way, suffix string) string { return "HotName/" + way + suffix }

const (
	// maxKept limits the time of a hit from a kept reply relative to the query path's.
	maxKept = 1
	// maxUneven limits the packets of the busiest socket relative to the mean.
	maxUneven = 1.2
)

func value(v float64) float64 { return v }

// spread returns the median, the least and the most of a benchmark's values.
func (r *Report) spread(name, unit string) (figures.Spread, bool) {
	return figures.SpreadBy(r.Values[name][unit], value)
}

// relative is the time of a hit from a kept reply relative to the query path's, within each round.
func (r *Report) relative(suffix string) (figures.Spread, bool) {
	return figures.SpreadOfRatios(r.Values[hot("kept", suffix)]["ns/op"], r.Values[hot("path", suffix)]["ns/op"], value)
}

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	kept := harness.Target{What: "time of a hit from a kept reply, relative to the query path", Limit: maxKept, Below: true}
	for _, s := range suffixes {
		kept.Of = append(kept.Of, harness.TargetValue{Name: readersText(s.readers), Find: func() (figures.Spread, bool) { return r.relative(s.suffix) }})
	}
	uneven := harness.Target{What: "packets of the busiest of 16 sockets, relative to the mean", Limit: maxUneven}
	uneven.Of = append(uneven.Of, harness.TargetValue{Name: "spread at random", Find: func() (figures.Spread, bool) {
		return r.spread("Spread/random", "busiest/mean")
	}})
	return []harness.Target{kept, uneven}
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
	rows := [][]string{{"readers", "answered by", "ns per hit", "least–most", "relative to the path", "waits for a lock per million hits", "allocations per hit"}}
	for _, s := range suffixes {
		for _, way := range []string{"path", "kept"} {
			name := hot(way, s.suffix)
			took, ok := r.spread(name, "ns/op")
			if !ok {
				continue
			}
			waits, _ := r.spread(name, "lock-waits/op")
			allocs, _ := r.spread(name, "allocs/op")
			what, relative := "the query path", ""
			if way == "kept" {
				what = "a kept reply"
				if v, ok := r.relative(s.suffix); ok {
					relative = fmt.Sprintf("%.2f (%.2f–%.2f)", v.Median, v.Least, v.Most)
				}
			}
			rows = append(rows, []string{
				fmt.Sprint(s.readers), what, fmt.Sprintf("%.0f", took.Median), fmt.Sprintf("%.0f–%.0f", took.Least, took.Most), relative,
				fmt.Sprintf("%.1f (%.1f–%.1f)", waits.Median*perMillion, waits.Least*perMillion, waits.Most*perMillion), fmt.Sprintf("%.0f", allocs.Median),
			})
		}
	}
	return figures.Table(rows)
}

// sockets is the table of how evenly clients load sockets.
func (r *Report) sockets() string {
	rows := [][]string{{"the socket of a packet", "packets of the busiest socket, relative to the mean", "least–most"}}
	for _, way := range []struct{ name, what string }{{"hash", "by the kernel's hash of the client's address and port"}, {"random", "at random, as under load"}} {
		if v, ok := r.spread("Spread/"+way.name, "busiest/mean"); ok {
			rows = append(rows, []string{way.what, fmt.Sprintf("%.2f", v.Median), fmt.Sprintf("%.2f–%.2f", v.Least, v.Most)})
		}
	}
	return figures.Table(rows)
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
