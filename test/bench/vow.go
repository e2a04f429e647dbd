package main

import (
	_ "embed"
)

// What answers from inside the kernel have to be worth, in units of the C echo's.
const (
	// maxKernelCPU, insideMedian and insideLate are the CPU, the p50 and the p99 of a query
	// at a fixed rate, and insideInterval is the time per query at saturation.
	maxKernelCPU, maxKernelP50, maxKernelP99 = 1.0 / 2, 1.0 / 6, 1.0 / 3
	maxKernelInterval                        = 1 / 1.5
	// maxAgentLoad is what the agent may take of a core, in hundredths, while the kernel
	// answers ten thousand queries a second.
	maxAgentLoad = 1
	// maxFaultRatio is how much worse a mishap may be than for the socket path: what two rows of
	// the same agent differ by in -faults, where it is a matter of milliseconds.
	maxFaultRatio = 1.25
)

// Targets are what nodens has to show.
func (r *podReport) Targets() []target {
	var list []target
	for _, w := range podLoads() {
		if w.rate == 0 {
			list = append(list, target{what: "time per query " + w.loadShape.name + ", C echo's = 1", limit: maxKernelInterval, of: r.ratioToEcho("", sample.interval, w)})
			continue
		}
		list = append(list,
			target{what: "CPU per query, " + w.loadShape.name + ", C echo's = 1", limit: maxKernelCPU,
				of: append(r.ratioToEcho("all cores", sample.machineCPU, w), r.ratioToEcho("client and server", sample.processCPU, w)...)},
			target{what: "p50, " + w.loadShape.name + ", C echo's = 1", limit: maxKernelP50, of: r.ratioToEcho("", sample.p50, w)},
			target{what: "p99, " + w.loadShape.name + ", C echo's = 1", limit: maxKernelP99, of: r.ratioToEcho("", sample.p99, w)})
		if w.rate == 10000 {
			list = append(list, target{what: "agent's own CPU, " + w.loadShape.name, limit: maxAgentLoad, below: true, unit: "% of a core", of: r.agentLoads(w)})
		}
	}
	list = append(list, target{what: "questions lost that were asked after the process was gone, by " + killed, limit: 0, of: []targetValue{{"", func() (spread, bool) {
		v, ok := r.resultSpread(faultResult.lostAfterExit, cell{kernelRow, killed})
		v.median = v.most
		return v, ok
	}}}})
	for _, m := range podFaults() {
		list = append(list,
			target{what: "questions lost by " + m.name + ", by its socket = 1", limit: maxFaultRatio, of: r.ratioToSocket(faultResult.lost, m)},
			target{what: "longest time without an answer by " + m.name + ", by its socket = 1", limit: maxFaultRatio, of: r.ratioToSocket(faultResult.silence, m)})
	}
	return list
}

// ratioToEcho is the kernel's value in units of the C echo's in the same round.
func (r *podReport) ratioToEcho(name string, f func(sample) float64, w workload) []targetValue {
	return []targetValue{{name, func() (spread, bool) {
		return r.ratio(f, cell{kernelRow, w.name}, cell{echoRow, w.name})
	}}}
}

// agentLoads is what the agent takes of a core.
func (r *podReport) agentLoads(w workload) []targetValue {
	return []targetValue{{"", func() (spread, bool) {
		at := cell{kernelRow, w.name}
		if len(r.samples[at]) == 0 {
			return spread{}, false
		}
		return r.over(at, sample.serverLoad), true
	}}}
}

// ratioToSocket is a harm with the kernel's help in units of that without. Both are one more
// than they are, a question or a millisecond, so that none is a number too.
func (r *podReport) ratioToSocket(f func(faultResult) float64, m fault) []targetValue {
	return []targetValue{{"", func() (spread, bool) {
		a, b := r.results[cell{kernelRow, m.name}], r.results[cell{socketRow, m.name}]
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

// Render returns the report about answers from inside the kernel as a section of the page.
func (r *podReport) Render([]plotFile) ([]byte, error) {
	data := struct {
		sectionData
		Loads, Mishaps []tableEntry
	}{sectionData: r.newSectionData(r.Targets())}
	for _, w := range r.workloads {
		data.Loads = append(data.Loads, tableEntry{w.name, w.loadShape.what, r.workloadTable(w)})
	}
	data.Mishaps = r.faultEntries(podFaults())
	return fillTemplate(podText, data)
}
