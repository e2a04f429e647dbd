package harness

import (
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// PerSecond is the rate of the answers.
func (s Sample) PerSecond() float64 { return float64(s.Completed) / s.Elapsed.Seconds() }

func (s Sample) rss() float64  { return figures.Mebi(s.RSS) }
func (s Sample) lost() float64 { return float64(s.Lost) }

// Share returns a column with the median of a part.
func (r Results[T]) Share(head string, f func(T) float64) Column {
	return r.column(head, f, func(s figures.Spread) string {
		s.Median *= 100
		return s.Text("%.0f %%")
	})
}

// podColumns are those of what a pod asks.
func (r *Report) podColumns() []Column {
	s := r.Samples
	return []Column{
		s.Median("CPU µs per query", "%.1f", Sample.MachineCPU), s.Range("%.1f", Sample.MachineCPU),
		s.Median("client's", "%.1f", func(s Sample) float64 { return float64(s.Client.Nanoseconds()) / 1e3 / s.answered() }),
		s.Median("server's", "%.2f", Sample.CPUPerQuery),
		s.Median("p50 µs", "%.1f", Sample.P50), s.Median("p99 µs", "%.1f", Sample.P99),
		s.Share("answered in the kernel", func(s Sample) float64 { return s.KernelShare }), s.Most("lost", "%.0f", Sample.lost),
	}
}

// columns are those of a workload's table.
func (r *Report) columns(w Workload) []Column {
	s := r.Samples
	price := []Column{s.Median("CPU µs per query", "%.2f", Sample.CPUPerQuery), s.Range("%.2f", Sample.CPUPerQuery)}
	latency := []Column{s.Median("p50 µs", "%.0f", Sample.P50), s.Median("p99 µs", "%.0f", Sample.P99), s.Most("lost", "%.0f", Sample.lost)}
	rate, rss := s.Median("queries/s", "%.0f", Sample.PerSecond), s.Median("RSS MiB", "%.0f", Sample.rss)
	switch w.Tool {
	case FromPod, MissesFromPod:
		return r.podColumns()
	case FixedRate:
		return append(price, latency...)
	case CacheMisses:
		if w.Rate > 0 {
			return append(price, latency...)
		}
		return append(price, rate, s.Share("failed", func(s Sample) float64 { return s.Failed() }), rss)
	case MissFlood:
		return slices.Concat(price, latency, []Column{
			s.Share("flood failed", func(s Sample) float64 { return s.floodResult.Failed() }),
			s.Median("RSS MiB before", "%.0f", func(s Sample) float64 { return figures.Mebi(s.Before) }),
			s.Median("at most", "%.0f", func(s Sample) float64 { return figures.Mebi(s.Peak) }),
		})
	default:
		return append(price, s.Share("in the kernel", func(s Sample) float64 { return s.Kernel }), rate, rss)
	}
}

// pooledLatency is the time in microseconds within which the part of all rounds' answers
// came: a single round has too few for the last of a thousand.
func (r *Report) pooledLatency(at Cell, part float64) float64 {
	var all []time.Duration
	for _, s := range r.Samples[at] {
		all = append(all, s.Latencies...)
	}
	slices.Sort(all)
	return float64(figures.Percentile(all, part).Nanoseconds()) / 1e3
}

// WorkloadTable is the table of a workload.
func (r *Report) WorkloadTable(w Workload) string {
	return r.Samples.Table([]string{"server"}, ServerRows(r.Servers, w.Name), r.columns(w)...)
}

// CPUTable returns a table of workloads: the CPU time of a query of two servers in microseconds, their ratio with its range, and
// the queries per second of the second one. heads are those of the first four columns. Workloads that were not measured for both are
// left out.
func (r *Report) CPUTable(heads [4]string, base, server string, workloads ...string) string {
	ratios := r.Samples.Relative(Sample.CPUPerQuery, Beside(base))
	cpu := r.Samples.Median("", "%.2f", Sample.CPUPerQuery)
	return ratios.Table(heads[:1], WorkloadRows(server, workloads...),
		cpu.Headed(heads[1]).Of(Beside(base)), cpu.Headed(heads[2]), ratios.Median(heads[3], "%.3f", Plain), ratios.Range("%.3f", Plain),
		r.Samples.Median("queries/s", "%.0f", Sample.PerSecond))
}

// CPURatio returns the CPU time of a query of a server relative to another one's under the same workload; false if one of
// them was not measured.
func (r *Report) CPURatio(server, base, workload string) (figures.Spread, bool) {
	return r.CPURatioValue("", server, base, workload).Find()
}

// CPURatioValue is CPURatio as a value of a target.
func (r *Report) CPURatioValue(name, server, base, workload string) TargetValue {
	return r.Samples.RatioValue(name, Cell{server, workload}, Cell{base, workload}, Sample.CPUPerQuery)
}
