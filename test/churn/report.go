package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quantity is one of the things that samples have.
type quantity struct {
	name string
	// File is the name of the drawing, Title and unit are what it shows. Empty: there is none.
	File, Title, unit string
	of                func(sample) float64
	bound             bound
	decimals          int
	// ofNode says that the values are the node's.
	ofNode bool
}

// quantities are what must stay flat. A collection of garbage leaves some MiB more or less
// in resident memory; the bounds are for that, and the first rounds fill caches and pools.
var quantities = []quantity{
	{"RSS, MiB", "memory", "Resident memory", "MiB", func(s sample) float64 { return s.rss }, bound{0.1, 6, 8}, 1, false},
	{"heap, MiB", "heap", "Heap after garbage collection", "MiB", func(s sample) float64 { return s.heap }, bound{0.1, 2, 8}, 1, false},
	{"descriptors", "descriptors", "Descriptors", "", func(s sample) float64 { return s.files }, bound{}, 0, false},
	{"goroutines", "goroutines", "Goroutines", "", func(s sample) float64 { return s.goroutines }, bound{}, 0, false},
	{"rules, chains and tables", "rules", "Rules, chains and tables of the packet filter", "", func(s sample) float64 { return s.rules }, bound{}, 0, true},
	{"interfaces", "interfaces", "Network interfaces of the node", "", func(s sample) float64 { return s.interfaces }, bound{}, 0, true},
	{"addresses", "addresses", "Addresses of the node", "", func(s sample) float64 { return s.addrs }, bound{}, 0, true},
	{"panics", "", "", "", func(s sample) float64 { return s.panics }, bound{}, 0, false},
}

func (e quantity) values(a *agent) []float64 {
	list := make([]float64, len(a.samples))
	for i, s := range a.samples {
		list[i] = e.of(s)
	}
	return list
}

// judge adds to the faults what the samples say.
func (r *run) judge() {
	for _, a := range r.agents {
		for _, e := range quantities {
			values := e.values(a)
			if len(values) == 0 {
				continue
			}
			if err := e.bound.judge(values); err != nil {
				r.fault("%s: %s %v; %s", a.name, e.name, err, a.samples[len(values)-1].more(a.samples[len(values)/4]))
			}
		}
		if n := len(a.samples); n > 0 && a.samples[n-1].panics > 0 {
			r.fault("%s: %v queries panicked", a.name, a.samples[n-1].panics)
		}
	}
}

// verdict is an error if anything is wrong.
func (r *run) verdict() error {
	if len(r.faults) > 0 {
		return fmt.Errorf("%d faults with seed %d:\n%s", len(r.faults), r.plan.seed, strings.Join(r.faults, "\n"))
	}
	if r.rounds() == 0 {
		return errors.New("no round is complete")
	}
	return nil
}

// rounds returns the number of complete rounds. The first sample is older than all of them.
func (r *run) rounds() int { return max(0, len(r.agents[0].samples)-1) }

// follow says how far the run is.
func (r *run) follow() {
	if r.plan.progress == nil {
		return
	}
	fmt.Fprintf(r.plan.progress, "%s, round %d: %d faults", r.took.Round(time.Second), r.round, len(r.faults))
	for _, a := range r.agents {
		s := a.samples[len(a.samples)-1]
		fmt.Fprintf(r.plan.progress, "; %s: RSS %.1f MiB, heap %.1f MiB, %.0f descriptors, %.0f goroutines", a.name, s.rss, s.heap, s.files, s.goroutines)
		if a.node != nil {
			fmt.Fprintf(r.plan.progress, ", %.0f rules, %.0f interfaces, %.0f addresses", s.rules, s.interfaces, s.addrs)
		}
		if more := s.more(a.samples[max(0, len(a.samples)-2)]); more != "" {
			fmt.Fprintf(r.plan.progress, " (%s)", more)
		}
	}
	fmt.Fprintln(r.plan.progress)
}

// events returns what happened.
func (r *run) events() []event {
	return []event{
		{"objects changed", r.counts.changes}, {"watches cut", r.counts.watchesCut}, {"API server away", r.counts.apiAway},
		{"upstream away", r.counts.upstreamAway}, {"reloads", r.counts.reloads}, {"reloads refused", r.counts.refused},
		{"hand-overs", r.counts.handovers}, {"failed hand-overs", r.counts.failedHandovers},
		{"stops", r.counts.stops}, {"kills", r.counts.kills},
		{"stalls of the machine", int(r.stalls.number.Load())},
	}
}

// String is the report: what happened, what became of the queries, and the samples.
func (r *run) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds in %s, seed %d\n\n", r.rounds(), r.took.Round(time.Second), r.plan.seed)
	for _, e := range r.events() {
		fmt.Fprintf(&b, "%-34s %8d\n", e.What, e.N)
	}
	fmt.Fprintf(&b, "\n%-34s %8s %6s %6s %8s %6s\n", "queries", "asked", "lost", "wrong", "SERVFAIL", "again")
	for _, p := range r.phases {
		fmt.Fprintf(&b, "%-34s %8d %6d %6d %8d %6d\n", p.name, p.asked, p.lost, p.wrong, p.servfail, p.again)
	}
	fmt.Fprintf(&b, "\n%-34s %8s %8s %8s %8s\n", "samples", "first", "warm", "middle", "end")
	for _, a := range r.agents {
		for _, e := range quantities[:len(quantities)-1] {
			r.writeQuantity(&b, a, e)
		}
	}
	return b.String()
}

func (r *run) writeQuantity(b *strings.Builder, a *agent, e quantity) {
	values := e.values(a)
	if len(values) == 0 || e.ofNode && a.node == nil {
		return
	}
	fmt.Fprintf(b, "%-34s", a.name+", "+e.name)
	for _, text := range e.summary(values)[:4] {
		fmt.Fprintf(b, " %8s", text)
	}
	b.WriteByte('\n')
}

// summary returns the first value, the medians of the second, third and last quarter, the least and
// the most. values is not empty.
func (e quantity) summary(values []float64) (list []string) {
	n := len(values)
	for _, v := range []float64{
		values[0], reference(values), median(values[n/2 : max(n*3/4, n/2+1)]), end(values), slices.Min(values), slices.Max(values),
	} {
		list = append(list, strconv.FormatFloat(v, 'f', e.decimals, 64))
	}
	return list
}
