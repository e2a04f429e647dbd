package main

import (
	"fmt"
	"regexp"
	"strings"
)

// choice is a choice of workloads and servers. The zero value is all of them.
type choice struct {
	text               string
	workloads, servers *regexp.Regexp
}

// choose reads WORKLOADS/SERVERS, of which either may be empty for all, and the
// stroke missing. Both are regular expressions that match a part of the name, in
// any case.
func choose(text string) (choice, error) {
	c := choice{text: text}
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

// named says whether what has the name is measured.
func (c choice) named(name string) bool { return c.workloads == nil || c.workloads.MatchString(name) }

func (c choice) workload(w workload) bool { return c.named(w.name) }

// server says whether the server is measured.
func (c choice) server(s server) bool { return c.servers == nil || c.servers.MatchString(s.name) }
