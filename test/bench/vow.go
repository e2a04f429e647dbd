package main

import (
	_ "embed"
)

// What answers from inside the kernel have to be worth, in units of the C echo's.
const (
	// insidePrice, insideMedian and insideLate are the CPU, the p50 and the p99 of a query
	// at a fixed rate, and insideInterval is the time per query at saturation.
	insidePrice, insideMedian, insideLate = 1.0 / 2, 1.0 / 6, 1.0 / 3
	insideInterval                        = 1 / 1.5
	// insideBurden is what the agent may take of a core, in hundredths, while the kernel
	// answers ten thousand queries a second.
	insideBurden = 1
	// asHarmful is how much worse a mishap may be than for the socket path: what two rows of
	// the same agent differ by in -faults, where it is a matter of milliseconds.
	asHarmful = 1.25
)

// vows are what nodens has to show.
func vows() []claim {
	var list []claim
	for _, w := range podLoads() {
		if w.rate == 0 {
			list = append(list, claim{what: "time per query " + w.manner.name + ", C echo's = 1", limit: insideInterval, of: inside("", sample.interval, w)})
			continue
		}
		list = append(list,
			claim{what: "CPU per query, " + w.manner.name + ", C echo's = 1", limit: insidePrice,
				of: append(inside("all cores", sample.whole, w), inside("client and server", sample.together, w)...)},
			claim{what: "p50, " + w.manner.name + ", C echo's = 1", limit: insideMedian, of: inside("", sample.p50, w)},
			claim{what: "p99, " + w.manner.name + ", C echo's = 1", limit: insideLate, of: inside("", sample.p99, w)})
		if w.rate == 10000 {
			list = append(list, claim{what: "agent's own CPU, " + w.manner.name, limit: insideBurden, below: true, unit: "% of a core", of: burdens(w)})
		}
	}
	list = append(list, claim{what: "questions lost that were asked after the process was gone, by " + killed, limit: 0, of: []value{{"", func(r *report) (spread, bool) {
		v, ok := r.harmed(harm.unserved, cell{kernelRow, killed})
		v.median = v.most
		return v, ok
	}}}})
	for _, m := range podMishaps() {
		list = append(list,
			claim{what: "questions lost by " + m.name + ", by its socket = 1", limit: asHarmful, of: harmfuller(harm.lost, m)},
			claim{what: "longest time without an answer by " + m.name + ", by its socket = 1", limit: asHarmful, of: harmfuller(harm.silence, m)})
	}
	return list
}

// inside is the kernel's value in units of the C echo's in the same round.
func inside(name string, f func(sample) float64, w workload) []value {
	return []value{{name, func(r *report) (spread, bool) {
		return r.ratio(f, cell{kernelRow, w.name}, cell{echoRow, w.name})
	}}}
}

// burdens is what the agent takes of a core.
func burdens(w workload) []value {
	return []value{{"", func(r *report) (spread, bool) {
		at := cell{kernelRow, w.name}
		if len(r.samples[at]) == 0 {
			return spread{}, false
		}
		return r.over(at, sample.burden), true
	}}}
}

// harmfuller is a harm with the kernel's help in units of that without. Both are one more
// than they are, a question or a millisecond, so that none is a number too.
func harmfuller(f func(harm) float64, m mishap) []value {
	return []value{{"", func(r *report) (spread, bool) {
		a, b := r.harms[cell{kernelRow, m.name}], r.harms[cell{socketRow, m.name}]
		var values []float64
		for i := range min(len(a), len(b)) {
			values = append(values, (1+f(a[i]))/(1+f(b[i])))
		}
		if len(values) == 0 {
			return spread{}, false
		}
		return spreadOf(values), true
	}}}
}

//go:embed pod.md.tmpl
var podText string

// podSection is the report about answers from inside the kernel as a section of the page.
func (r *report) podSection() ([]byte, error) {
	data := struct {
		frame
		Loads, Mishaps []entry
	}{frame: r.frame(podPart, vows())}
	for _, w := range r.workloads {
		data.Loads = append(data.Loads, entry{w.name, w.manner.what, r.prices(w)})
	}
	data.Mishaps = r.harmEntries(podMishaps())
	return render(podText, data)
}
