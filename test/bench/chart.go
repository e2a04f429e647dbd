package main

import "fmt"

// charts are the drawings of what was measured; one without a row is left out.
func (r *report) charts() []chart {
	price, first := sample.price, sets[0].name
	at := func(m manner) string { return first + ", " + m.name }
	list := []chart{
		r.marks(chart{file: "rates.svg", title: "CPU per query, " + first, unit: "µs"}, price,
			at(paced[0]), at(paced[2]), at(paced[1])),
		r.marks(chart{file: "answers.svg", title: "CPU per query at saturation, by what is asked", unit: "µs"}, price,
			named(paced[0])...),
		r.percentiles(chart{file: "latency-1000.svg", title: "Time to the answer at 1,000 queries/s, " + first}, at(paced[1])),
		r.percentiles(chart{file: "latency-10000.svg", title: "Time to the answer at 10,000 queries/s, " + first}, at(paced[2])),
		r.marks(chart{file: "tcp.svg", title: "CPU per query over TCP at saturation", unit: "µs"}, price,
			others[0].name, others[1].name),
		r.marks(chart{file: "misses.svg", title: "CPU per query with new names", unit: "µs"}, price,
			others[2].name, others[4].name),
		r.marks(chart{file: "flood.svg", title: "p99 of hits beside a flood of misses", unit: "µs", log: true}, sample.p99,
			others[3].name, others[4].name),
		r.footprint(),
	}
	var drawn []chart
	for _, c := range list {
		if len(c.rows) > 0 {
			drawn = append(drawn, c)
		}
	}
	return drawn
}

// named are the names of the workloads of all sets in a manner.
func named(m manner) []string {
	var list []string
	for _, q := range sets {
		list = append(list, q.name+", "+m.name)
	}
	return list
}

// marks fills the chart with a value of each workload. Servers without all of
// them are left out, and so are workloads that nobody has.
func (r *report) marks(c chart, f func(sample) float64, workloads ...string) chart {
	var have []string
	for _, w := range r.workloads {
		for _, name := range workloads {
			if w.name == name {
				have = append(have, name)
				c.series = append(c.series, name)
			}
		}
	}
	for _, s := range r.servers {
		row := bar{label: s.name}
		for _, w := range have {
			if at := (cell{s.name, w}); len(r.samples[at]) > 0 {
				row.values = append(row.values, r.over(at, f))
			}
		}
		if len(row.values) == len(have) && len(have) > 0 {
			c.rows = append(c.rows, row)
		}
	}
	return c
}

// percentiles fills the chart with the times of one workload.
func (r *report) percentiles(c chart, workload string) chart {
	c.unit, c.log, c.series = "µs", true, []string{"p50", "p99", "p99.9"}
	for _, s := range r.servers {
		at := cell{s.name, workload}
		if len(r.samples[at]) == 0 {
			continue
		}
		last := r.pooled(at, 0.999)
		c.rows = append(c.rows, bar{s.name, []spread{r.over(at, sample.p50), r.over(at, sample.p99), {last, last, last}}})
	}
	return c
}

// footprint is the chart of the memory.
func (r *report) footprint() chart {
	c := chart{file: "memory.svg", title: "Memory", unit: "MiB", series: []string{"after the start", fmt.Sprintf("with %d names", r.plan.names)}}
	for _, s := range r.servers {
		if h, ok := r.holds[s.name]; ok {
			c.rows = append(c.rows, bar{s.name, []spread{spreadOf([]float64{mebi(h.idle)}), spreadOf([]float64{mebi(h.full)})}})
		}
	}
	return c
}
