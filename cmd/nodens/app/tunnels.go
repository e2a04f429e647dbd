package app

import (
	"fmt"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/report"
)

// readTunnels reads the metrics of all detectors of g.
func readTunnels(s *scrape, g *generation) {
	for _, d := range g.detectors() {
		read(s, d)
		for _, x := range d.Suspects(clock.Now()) {
			read(s, x)
		}
	}
}

// maxTunnelProblems bounds the suspects that nodens status names.
const maxTunnelProblems = 16

// tunnelProblems names the suspects of g, which may be nil.
func tunnelProblems(g *generation) (list []report.Problem) {
	if g == nil {
		return nil
	}
	for _, d := range g.detectors() {
		for _, x := range d.Suspects(clock.Now()) {
			who := x.Client.String()
			if x.Owner.Pod != "" {
				who = x.Owner.Namespace + "/" + x.Owner.Pod
			}
			if len(list) < maxTunnelProblems {
				list = append(list, problem(fmt.Sprintf("%s may send data in names below %s: %d names, %d bytes", who, x.Domain, x.Names, x.Bytes))...)
			}
		}
	}
	return list
}
