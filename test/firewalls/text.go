package firewalls

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// maxDifferences bounds what is shown of a difference.
const maxDifferences = 12

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	var lines []string
	for _, l := range was {
		if !slices.Contains(is, l) {
			lines = append(lines, "- "+strings.TrimSpace(l))
		}
	}
	for _, l := range is {
		if !slices.Contains(was, l) {
			lines = append(lines, "+ "+strings.TrimSpace(l))
		}
	}
	if len(lines) == 0 {
		return "the same lines in another order or number"
	}
	return strings.Join(lines[:min(len(lines), maxDifferences)], "\n")
}

// lastProblem returns the last line of an agent's log about a failure.
func lastProblem(p *peer.Process) string {
	last := ""
	for line := range strings.Lines(p.Tail()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") || !strings.Contains(line, "level=") {
			last = line
		}
	}
	return fmt.Sprintf("%.400s", strings.TrimSpace(last))
}
