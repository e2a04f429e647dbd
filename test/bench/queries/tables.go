package queries

import (
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// idleTable is the table of what servers do while nobody asks; empty if that was not
// measured.
func (r *Report) idleTable() string {
	rows := [][]string{{"server", "CPU ms per second", "least–most", "sleeps per second"}}
	for _, s := range r.Servers {
		var cpu, sleeps []float64
		for _, n := range r.idle[s.Name] {
			cpu = append(cpu, n.cpu.Seconds()*1e3/n.length.Seconds())
			sleeps = append(sleeps, float64(n.switches)/n.length.Seconds())
		}
		if len(cpu) == 0 {
			continue
		}
		v := figures.SpreadOf(cpu)
		rows = append(rows, []string{s.Name, fmt.Sprintf("%.3f", v.Median), fmt.Sprintf("%.3f–%.3f", v.Least, v.Most),
			fmt.Sprintf("%.1f", figures.SpreadOf(sleeps).Median)})
	}
	if len(rows) == 1 {
		return ""
	}
	return figures.Table(rows)
}

// memoryTable is the table of RSS; empty if it was not measured.
func (r *Report) memoryTable() string {
	rows := [][]string{{"server", "MiB after the start", fmt.Sprintf("with %d names", r.Plan.Names), "bytes per name", "kept"}}
	for _, s := range r.Servers {
		h, ok := r.memory[s.Name]
		if !ok {
			continue
		}
		rows = append(rows, []string{s.Name, fmt.Sprintf("%.1f", figures.Mebi(h.idle)), fmt.Sprintf("%.1f", figures.Mebi(h.full)),
			fmt.Sprintf("%.0f", (float64(h.full)-float64(h.idle))/float64(r.Plan.Names)), fmt.Sprintf("%.1f %%", 100*h.kept)})
	}
	if len(rows) == 1 {
		return ""
	}
	return figures.Table(rows)
}

func (r *Report) Tables() []string { return []string{r.idleTable(), r.memoryTable()} }
