// Package upstreams measures the section about real servers as upstreams: the latency of misses over each
// transport, beside CoreDNS's forward to the same server in the same minute, and what fails while the
// server restarts.
package upstreams

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/upstreams"
)

// rates are the queries per second of the latency tables, and how much longer than the plan's length they
// take: low rates need time to have enough queries.
var rates = []struct{ rate, lengths int }{{50, 4}, {1000, 1}}

// row is a server over a transport.
type row struct {
	server    string
	transport upstreams.Transport
}

// pair is what a row measured in a round: nodens' count and CoreDNS's.
type pair struct{ nodens, coreDNS upstreams.Count }

// Report is the section's result.
type Report struct {
	*harness.Report
	rows       []row
	latencies  map[row]map[int][]pair    // by rate; a pair for each round
	situations map[row]map[string][]pair // by name
}

// Measure measures all servers that are installed, one after the other.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	r := &Report{
		Report:    &harness.Report{Plan: p, Date: time.Now(), Commit: harness.Commit(), Facts: machine.Describe(), LoadBefore: machine.LoadAverage()},
		latencies: map[row]map[int][]pair{}, situations: map[row]map[string][]pair{},
	}
	for n := range p.Rounds {
		for _, s := range upstreams.Servers() {
			if !p.Only.MatchesName(s.Name) {
				continue
			}
			err := r.measureServer(ctx, s)
			switch {
			case errors.Is(err, upstreams.ErrAbsent) && n == 0:
				r.Notes = append(r.Notes, fmt.Sprintf("The rows of %s are left out: %v.", s.Name, err))
			case err != nil && !errors.Is(err, upstreams.ErrAbsent):
				return nil, err
			}
		}
	}
	r.NoteLoad()
	return r, nil
}

// measureServer measures a server in a round.
func (r *Report) measureServer(ctx context.Context, s upstreams.Server) error {
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	b, err := upstreams.Start(ctx, s, dir)
	if err != nil {
		return err
	}
	defer b.Close()
	for _, in := range upstreams.Situations() {
		if !in.Applies(s) {
			continue
		}
		counts, err := b.Run(ctx, in)
		if err != nil {
			return err
		}
		for _, t := range s.Transports {
			at := r.row(s, t)
			r.situations[at][in.Name] = append(r.situations[at][in.Name], newPair(counts, t))
		}
		fmt.Fprintf(r.Plan.Progress, "%s, %s\n", s.Name, in.Name)
	}
	if !s.Usual {
		return nil
	}
	for _, t := range s.Transports {
		if err := r.measureLatencies(ctx, b, r.row(s, t)); err != nil {
			return err
		}
	}
	return nil
}

// row returns the row of s over t, which it makes when it is new.
func (r *Report) row(s upstreams.Server, t upstreams.Transport) row {
	at := row{s.Name, t}
	if r.situations[at] == nil {
		r.rows = append(r.rows, at)
		r.situations[at], r.latencies[at] = map[string][]pair{}, map[int][]pair{}
	}
	return at
}

func newPair(counts map[upstreams.Of]upstreams.Count, t upstreams.Transport) pair {
	return pair{counts[upstreams.Of{Forwarder: upstreams.Nodens, Transport: t}], counts[upstreams.Of{Forwarder: upstreams.CoreDNS, Transport: t}]}
}

// measureLatencies measures a row at all rates, in two halves: the order of forwarders differs.
func (r *Report) measureLatencies(ctx context.Context, b *upstreams.Bed, at row) error {
	for _, load := range rates {
		var sum pair
		for range 2 {
			counts, err := b.Latency(ctx, at.transport, load.rate, r.Plan.Length*time.Duration(load.lengths)/2)
			if err != nil {
				return err
			}
			p := newPair(counts, at.transport)
			sum.nodens.Add(p.nodens)
			sum.coreDNS.Add(p.coreDNS)
		}
		r.latencies[at][load.rate] = append(r.latencies[at][load.rate], sum)
		fmt.Fprintf(r.Plan.Progress, "%s over %s, %d/s: p90 %.2f ms, CoreDNS %.2f\n", at.server, at.transport, load.rate, millis(sum.nodens, 0.9), millis(sum.coreDNS, 0.9))
	}
	return nil
}

// pooled returns the sum of all rounds.
func pooled(rounds []pair) (sum pair) {
	for _, p := range rounds {
		sum.nodens.Add(p.nodens)
		sum.coreDNS.Add(p.coreDNS)
	}
	return sum
}

// percentile is a part of the queries.
type percentile struct {
	name string
	part float64
}

// parts are the percentiles of the targets, shownParts those of the tables.
var (
	parts      = []percentile{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}
	shownParts = []percentile{parts[0], parts[2]}
)

// maxRatio limits nodens' percentiles relative to CoreDNS's.
const maxRatio = 1.1

// Targets returns the section's targets.
func (r *Report) Targets() []harness.Target {
	var list []harness.Target
	for _, p := range parts {
		c := harness.Target{What: p.name + " of misses, relative to CoreDNS", Limit: maxRatio}
		for _, at := range r.rows {
			for rate, rounds := range r.latencies[at] {
				c.Of = append(c.Of, harness.TargetValue{Name: fmt.Sprintf("%s, %s, %d/s", at.server, at.transport, rate), Find: func() (figures.Spread, bool) {
					return figures.SpreadBy(rounds, func(v pair) float64 { return millis(v.nodens, p.part) / millis(v.coreDNS, p.part) })
				}})
			}
		}
		list = append(list, c)
	}
	for _, in := range upstreams.Situations() {
		c := harness.Target{What: "queries that failed, " + in.Name, Limit: 0}
		for _, at := range r.rows {
			c.Of = append(c.Of, harness.TargetValue{Name: fmt.Sprintf("%s, %s", at.server, at.transport), Find: func() (figures.Spread, bool) {
				return figures.SpreadBy(r.situations[at][in.Name], func(v pair) float64 { return float64(len(v.nodens.Wrong)) })
			}})
		}
		list = append(list, c)
	}
	return list
}

func millis(c upstreams.Count, part float64) float64 {
	return figures.Millis(figures.Percentile(c.Latencies, part))
}

// latencyTable returns the table of a rate: all rows, or those in which nodens is slower than [maxRatio] allows.
func (r *Report) latencyTable(rate int, all bool) string {
	rows := [][]string{{"server", "transport"}}
	for _, p := range shownParts {
		rows[0] = append(rows[0], p.name+" ms", "CoreDNS")
	}
	for _, at := range r.rows {
		sum := pooled(r.latencies[at][rate])
		if sum.nodens.Asked == 0 {
			continue
		}
		line, slower := []string{at.server, string(at.transport)}, false
		for _, p := range shownParts {
			n, c := millis(sum.nodens, p.part), millis(sum.coreDNS, p.part)
			line, slower = append(line, fmt.Sprintf("%.2f", n), fmt.Sprintf("%.2f", c)), slower || n > maxRatio*c
		}
		if all || slower {
			rows = append(rows, line)
		}
	}
	return figures.Table(rows)
}

// failureTable returns the table of what failed in the situations: the servers with which queries failed
// through nodens, and the sums over all.
func (r *Report) failureTable() string {
	rows := [][]string{{"server", "transport"}}
	for _, in := range upstreams.Situations() {
		rows[0] = append(rows[0], in.Name)
	}
	sums := make([]failures, len(rows[0])-2)
	for _, at := range r.rows {
		line, failed := []string{at.server, string(at.transport)}, false
		for i, in := range upstreams.Situations() {
			sum := pooled(r.situations[at][in.Name])
			f := failures{len(sum.nodens.Wrong), len(sum.coreDNS.Wrong), sum.coreDNS.Asked}
			line = append(line, f.String())
			sums[i] = failures{sums[i].nodens + f.nodens, sums[i].coreDNS + f.coreDNS, sums[i].of + f.of}
			failed = failed || f.nodens > 0
		}
		if failed {
			rows = append(rows, line)
		}
	}
	last := []string{"all", ""}
	for _, f := range sums {
		last = append(last, f.String())
	}
	return figures.Table(append(rows, last))
}

// failures are the queries that failed through each forwarder, and all queries of one.
type failures struct{ nodens, coreDNS, of int }

func (f failures) String() string {
	if f.of == 0 {
		return ""
	}
	return fmt.Sprintf("%d, %d of %d", f.nodens, f.coreDNS, f.of)
}

// Tables are all of them, as text for a terminal.
func (r *Report) Tables() (list []string) {
	for _, load := range rates {
		list = append(list, fmt.Sprintf("%d queries a second\n\n%s", load.rate, r.latencyTable(load.rate, true)))
	}
	return append(list, "failed\n\n"+r.failureTable())
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about real servers as upstreams.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Rates    []harness.TableEntry
		Failures string
		Servers  string
	}{SectionData: r.NewSectionData(r.Targets(), plots), Failures: r.failureTable()}
	for _, load := range rates {
		data.Rates = append(data.Rates, harness.TableEntry{Name: fmt.Sprintf("%d misses a second", load.rate), Table: r.latencyTable(load.rate, false)})
	}
	var names []string
	for _, s := range upstreams.Servers() {
		if s.Package != "" && s.Usual {
			names = append(names, s.Name+" (`"+s.Package+"`)")
		}
	}
	data.Servers = strings.Join(names, ", ")
	return harness.OnePage("upstreams.md", sectionText, data)
}
