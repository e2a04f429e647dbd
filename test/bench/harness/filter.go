package harness

import (
	"fmt"
	"regexp"
	"strings"
)

// filter is a choice of workloads and servers. The zero value is all of them.
type filter struct {
	text               string
	workloads, servers *regexp.Regexp
}

// ParseFilter reads WORKLOADS/SERVERS, of which either may be empty for all, and the
// stroke missing. Both are regular expressions that match a part of the name, in
// any case.
func ParseFilter(text string) (filter, error) {
	c := filter{text: text}
	var err error
	workloads, servers, _ := strings.Cut(text, "/")
	if c.workloads, err = regexp.Compile("(?i)" + workloads); err != nil {
		return c, fmt.Errorf("the workloads of -only: %w", err)
	}
	if c.servers, err = regexp.Compile("(?i)" + servers); err != nil {
		return c, fmt.Errorf("the servers of -only: %w", err)
	}
	return c, nil
}

// MatchesName says whether what has the name is measured.
func (c filter) MatchesName(name string) bool {
	return c.workloads == nil || c.workloads.MatchString(name)
}

func (c filter) Workload(w Workload) bool { return c.MatchesName(w.Name) }

// Server says whether the server is measured.
func (c filter) Server(s Server) bool { return c.servers == nil || c.servers.MatchString(s.Name) }
