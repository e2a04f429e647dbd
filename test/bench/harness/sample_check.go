package harness

import (
	"fmt"

	"github.com/miekg/dns"
)

// Problems returns what is wrong with a sample whatever the machine is: for tests of the
// sections.
func (s Sample) Problems(w Workload) (list []string) {
	paced, flood := w.Rate > 0, w.Tool == MissFlood
	for _, p := range []struct {
		wrong bool
		text  string
	}{
		{s.Completed == 0 || s.CPU <= 0 || s.Elapsed <= 0, "no query, CPU time or time"},
		{s.RSS == 0 || s.Peak == 0, "no memory"},
		{s.Kernel < 0 || s.Kernel > 1, "the kernel's part of the CPU time is not a part"},
		{s.Response < s.Request, "answers shorter than queries"},
		{paced != (len(s.Latencies)+int(s.blurred) > 0), "latencies without a rate, or a rate without latencies"},
		{flood != (s.floodResult.Sent > 0), "a flood without queries, or queries without a flood"},
	} {
		if p.wrong {
			list = append(list, fmt.Sprintf("%s: %+v", p.text, s.LoadResult))
		}
	}
	// What a server drops under a flood is its own decision.
	if w.Tool == CacheMisses || flood {
		return list
	}
	return append(list, s.answerProblems(w)...)
}

// answerProblems returns what is wrong with the answers.
func (s Sample) answerProblems(w Workload) (list []string) {
	if err := s.Check(dns.RcodeToString[w.Rcode]); err != nil {
		list = append(list, err.Error())
	}
	// dnsdist has an entry for each connection's first queries of the same name.
	if s.misses > uint64(w.Count())/10 {
		list = append(list, fmt.Sprintf("the upstream was asked %d times, want a warm cache", s.misses))
	}
	return list
}
