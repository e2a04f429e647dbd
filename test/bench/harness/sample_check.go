package harness

import (
	"fmt"
	"github.com/miekg/dns"
)

// Problems returns what is wrong with a sample whatever the machine is: for tests of the
// sections.
func (s Sample) Problems(w Workload) (list []string) {
	problem := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	// What a server drops under a flood is its own decision.
	if w.Tool != CacheMisses && w.Tool != MissFlood {
		if err := s.Check(dns.RcodeToString[w.Rcode]); err != nil {
			problem("%v", err)
		}
		// dnsdist has an entry for each connection's first queries of the same name.
		if s.misses > NameCount/10 {
			problem("the upstream was asked %d times, want a warm cache", s.misses)
		}
	}
	if s.Completed == 0 || s.Cpu <= 0 || s.Elapsed <= 0 || s.Rss == 0 || s.Peak == 0 || s.Kernel < 0 || s.Kernel > 1 {
		problem("nothing measured: %+v", s)
	}
	if s.Response < s.Request {
		problem("answers of %d bytes to questions of %d", s.Response, s.Request)
	}
	if paced := w.Tool == FixedRate || w.Tool == MissFlood; paced != (len(s.Latencies)+int(s.blurred) > 0) {
		problem("%d latencies", len(s.Latencies))
	}
	if (w.Tool == MissFlood) != (s.floodResult.Sent > 0) {
		problem("a flood of %d", s.floodResult.Sent)
	}
	return list
}
