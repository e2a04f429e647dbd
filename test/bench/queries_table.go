package main

import (
	"fmt"
)

// idleTable is the table of what servers do while nobody asks; empty if that was not
// measured.
func (r *queriesReport) idleTable() string {
	rows := [][]string{{"server", "CPU ms per second", "least–most", "sleeps per second"}}
	for _, s := range r.servers {
		var cpu, sleeps []float64
		for _, n := range r.rests[s.name] {
			cpu = append(cpu, n.cpu.Seconds()*1e3/n.length.Seconds())
			sleeps = append(sleeps, float64(n.switches)/n.length.Seconds())
		}
		if len(cpu) == 0 {
			continue
		}
		v := spreadOf(cpu)
		rows = append(rows, []string{s.name, fmt.Sprintf("%.3f", v.median), fmt.Sprintf("%.3f–%.3f", v.least, v.most),
			fmt.Sprintf("%.1f", spreadOf(sleeps).median)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// memoryTable is the table of RSS; empty if it was not measured.
func (r *queriesReport) memoryTable() string {
	rows := [][]string{{"server", "MiB after the start", fmt.Sprintf("with %d names", r.plan.names), "bytes per name", "kept"}}
	for _, s := range r.servers {
		h, ok := r.holds[s.name]
		if !ok {
			continue
		}
		rows = append(rows, []string{s.name, fmt.Sprintf("%.1f", mebi(h.idle)), fmt.Sprintf("%.1f", mebi(h.full)),
			fmt.Sprintf("%.0f", (float64(h.full)-float64(h.idle))/float64(r.plan.names)), fmt.Sprintf("%.1f %%", 100*h.kept)})
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

func (r *queriesReport) Tables() []string { return []string{r.idleTable(), r.memoryTable()} }
