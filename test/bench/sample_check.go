package main

import (
	"github.com/miekg/dns"
	"fmt"
)

// Problems returns what is wrong with a sample whatever the machine is: for tests of the
// sections.
func (s sample) Problems(w workload) (list []string) {
	problem := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	// What a server drops under a flood is its own decision.
	if w.tool != cacheMisses && w.tool != missFlood {
		if err := s.check(dns.RcodeToString[w.rcode]); err != nil {
			problem("%v", err)
		}
		// dnsdist has an entry for each connection's first queries of the same name.
		if s.misses > nameCount/10 {
			problem("the upstream was asked %d times, want a warm cache", s.misses)
		}
	}
	if s.completed == 0 || s.cpu <= 0 || s.elapsed <= 0 || s.rss == 0 || s.peak == 0 || s.kernel < 0 || s.kernel > 1 {
		problem("nothing measured: %+v", s)
	}
	if s.response < s.request {
		problem("answers of %d bytes to questions of %d", s.response, s.request)
	}
	if paced := w.tool == fixedRate || w.tool == missFlood; paced != (len(s.latencies)+int(s.blurred) > 0) {
		problem("%d latencies", len(s.latencies))
	}
	if (w.tool == missFlood) != (s.floodResult.sent > 0) {
		problem("a flood of %d", s.floodResult.sent)
	}
	return list
}
