package harness

import (
	"fmt"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// CellPair is two cells of a report whose CPU times are compared.
type CellPair struct {
	Name   string // of the row
	Of, To Cell   // To is the baseline
}

// CPURatio returns the CPU time of a query in p.Of relative to that in p.To; false if one of
// them was not measured.
func (r *Report) CPURatio(p CellPair) (figures.Spread, bool) {
	return r.Ratio(Sample.CPUPerQuery, p.Of, p.To)
}

// CPUTable returns a table with a row for each pair that was measured: its name, the CPU time
// of a query in To and in Of in microseconds, their ratio with its range, and the queries per
// second in Of. header has these six columns.
func (r *Report) CPUTable(header []string, pairs []CellPair) string {
	rows := [][]string{header}
	for _, p := range pairs {
		ratio, ok := r.CPURatio(p)
		if !ok {
			continue
		}
		rate := r.Over(p.Of, func(s Sample) float64 { return float64(s.Completed) / s.Elapsed.Seconds() })
		rows = append(rows, []string{
			p.Name,
			fmt.Sprintf("%.2f", r.Over(p.To, Sample.CPUPerQuery).Median), fmt.Sprintf("%.2f", r.Over(p.Of, Sample.CPUPerQuery).Median),
			fmt.Sprintf("%.3f", ratio.Median), fmt.Sprintf("%.3f–%.3f", ratio.Least, ratio.Most),
			fmt.Sprintf("%.0f", rate.Median),
		})
	}
	return figures.Table(rows)
}
