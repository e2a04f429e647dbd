package main

import "fmt"

// claim is a line of the result: a value of nodens' and the limit that it has to
// keep.
type claim struct {
	what string
	// limit is the most that the value may be; below says that it must be less.
	limit float64
	below bool
	// unit is what the value and the limit are in; empty for a ratio.
	unit string
	// of are the values, the greatest of which counts. Those that were not
	// measured are left out.
	of []value
}

// value finds a value in a report; false if it was not measured.
type value struct {
	name string
	find func(*report) (spread, bool)
}

// result is a claim with what was measured.
type result struct {
	claim
	worst    string
	spread   spread
	measured bool
}

// met says whether the median keeps the limit.
func (s result) met() bool {
	return s.measured && (s.spread.median < s.limit || !s.below && s.spread.median == s.limit)
}

func (s result) verdict() string {
	switch {
	case !s.measured:
		return "not measured"
	case s.met():
		return "met"
	default:
		return "**missed**"
	}
}

// judge finds the claim's greatest value.
func (c claim) judge(r *report) result {
	res := result{claim: c}
	for _, v := range c.of {
		if s, ok := v.find(r); ok && (!res.measured || s.median > res.spread.median) {
			res.worst, res.spread, res.measured = v.name, s, true
		}
	}
	return res
}

// compared are nodens' values under the workloads in units of another row's,
// measured in the same round. A row that has no such cell is compared under its
// answer for the cached name with the same rcode.
func compared(f func(sample) float64, to string, workloads ...workload) []value {
	var list []value
	for _, w := range workloads {
		other := w.name
		for _, s := range servers {
			if s.name == to && !w.asks(s) {
				other = cachedLike(w.questions).name + ", " + w.manner.name
			}
		}
		list = append(list, value{w.questions.name, func(r *report) (spread, bool) {
			return r.ratio(f, cell{"nodens", w.name}, cell{to, other})
		}})
	}
	return list
}

// cachedLike is the set of cached names with the same rcode.
func cachedLike(q questions) questions {
	for _, other := range sets {
		if !other.cluster && other.rcode == q.rcode {
			return other
		}
	}
	return q
}

// The limits.
const (
	// flat is how much more memory than before a flood may take and still count as
	// the same: pages that the allocator has not given back yet, not a list that
	// grows.
	flat = 1.10
	// usual is how much later than usual answers may come.
	usual = 1.10
)

// claims are what nodens has to show.
func claims() []claim {
	var list []claim
	list = append(list, saturated("cached hit", false)...)
	list = append(list, saturated("answer from the cluster view", true)...)
	for _, m := range paced[1:] {
		at := chosen(func(w workload) bool { return w.manner.name == m.name })
		list = append(list,
			claim{what: "CPU per query at " + m.name + ", C echo's = 1", limit: 1.3, of: compared(sample.price, "C echo", at...)},
			claim{what: "CPU per query at " + m.name + ", CoreDNS's = 1", limit: 0.4, of: compared(sample.price, "CoreDNS", at...)},
			claim{what: "p50 at " + m.name + ", C echo's = 1", limit: 1.3, of: compared(sample.p50, "C echo", at...)},
			claim{what: "p99 at " + m.name + ", C echo's = 1", limit: 1.3, of: compared(sample.p99, "C echo", at...)})
	}
	for _, w := range chosen(func(w workload) bool { return w.tool == stream }) {
		for _, to := range []string{"dnsdist", "CoreDNS"} {
			list = append(list, claim{what: fmt.Sprintf("CPU per query, %s, %s's = 1", w.manner.name, to), limit: 1, below: true, of: compared(sample.price, to, w)})
		}
	}
	misses := chosen(func(w workload) bool { return w.tool == miss })
	floods := chosen(func(w workload) bool { return w.tool == flood })
	list = append(list,
		claim{what: "CPU per query, misses at saturation, unbound's = 1", limit: 1, below: true, of: compared(sample.price, "unbound", misses...)},
		claim{what: "CPU per query in the flood, unbound's = 1", limit: 1, below: true, of: compared(sample.price, "unbound", floods...)},
		claim{what: "most memory in the flood, before it = 1", limit: flat, of: own(sample.growth, floods...)},
		claim{what: "p99 of hits in the flood, before it = 1", limit: usual, of: []value{{"cached A", func(r *report) (spread, bool) {
			return r.ratio(sample.p99, cell{"nodens", "in the flood"}, cell{"nodens", "before the flood"})
		}}}},
		claim{what: fmt.Sprintf("memory with %d cached names", entries), limit: 60, unit: "MiB", of: held(func(h hold) uint64 { return h.full })},
		claim{what: "memory after the start", limit: 25, unit: "MiB", of: held(func(h hold) uint64 { return h.idle })})
	return list
}

// saturated are the claims for cached or cluster names at saturation.
func saturated(what string, cluster bool) []claim {
	at := chosen(func(w workload) bool { return w.tool == saturate && w.cluster == cluster })
	what = "CPU per " + what + " at saturation, "
	return []claim{
		{what: what + "C echo's = 1", limit: 1.15, of: compared(sample.price, "C echo", at...)},
		{what: what + "unbound's = 1", limit: 1, below: true, of: compared(sample.price, "unbound", at...)},
		{what: what + "pdns-recursor's = 1", limit: 1, below: true, of: compared(sample.price, "pdns-recursor", at...)},
		{what: what + "CoreDNS's = 1", limit: 0.4, of: compared(sample.price, "CoreDNS", at...)},
	}
}

// own are nodens' values as they are.
func own(f func(sample) float64, at ...workload) []value {
	var list []value
	for _, w := range at {
		list = append(list, value{w.questions.name, func(r *report) (spread, bool) {
			c := cell{"nodens", w.name}
			if len(r.samples[c]) == 0 {
				return spread{}, false
			}
			return r.over(c, f), true
		}})
	}
	return list
}

func held(f func(hold) uint64) []value {
	return []value{{"", func(r *report) (spread, bool) {
		h, ok := r.holds["nodens"]
		return spreadOf([]float64{mebi(f(h))}), ok
	}}}
}

// chosen are the workloads that a condition holds for.
func chosen(holds func(workload) bool) []workload {
	var list []workload
	for _, w := range workloads() {
		if holds(w) {
			list = append(list, w)
		}
	}
	return list
}
