package queries

import (
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/harness"
)

// idleTable is the table of what servers do while nobody asks; empty if that was not
// measured.
func (r *Report) idleTable() string {
	return r.idle.Table([]string{"server"}, harness.ServerRows(r.Servers, ""),
		r.idle.Median("CPU ms per second", "%.3f", idleSample.cpuPerSecond), r.idle.Range("%.3f", idleSample.cpuPerSecond),
		r.idle.Median("sleeps per second", "%.1f", idleSample.sleepsPerSecond))
}

// memoryTable is the table of RSS; empty if it was not measured.
func (r *Report) memoryTable() string {
	return r.memory.Table([]string{"server"}, harness.ServerRows(r.Servers, ""),
		r.memory.Median("MiB after the start", "%.1f", memorySample.idleMebi), r.memory.Median(fmt.Sprintf("with %d names", r.Plan.Names), "%.1f", memorySample.fullMebi),
		r.memory.Median("bytes per name", "%.0f", func(h memorySample) float64 { return (float64(h.full) - float64(h.idle)) / float64(r.Plan.Names) }),
		r.memory.Median("kept", "%.1f %%", func(h memorySample) float64 { return 100 * h.kept }))
}

func (r *Report) Tables() []string { return []string{r.idleTable(), r.memoryTable()} }
