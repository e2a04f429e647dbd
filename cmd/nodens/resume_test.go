//go:build linux

package main

import (
	"strings"
	"testing"
)

// TestPredecessorResumes: a successor that fails when it has taken over already gives everything
// back, and no query is lost.
func TestPredecessorResumes(t *testing.T) {
	s := newSuccession(t)
	agent := s.start()
	c := s.crowd("udp", "udp", "udp")
	next := s.begin("-admin-socket", "/dev/null/admin")
	next.AwaitLog("took over")
	next.awaitExit(1)
	agent.AwaitLog("serving again")
	// Then it leaves the node's rules alone, which are not made here.
	if !strings.Contains(next.Log.String(), "the predecessor resumes") {
		t.Errorf("the successor takes down what is not its own:\n%s", next.Log)
	}
	c.more(t)
	s.start()
	agent.awaitExit(0)
	c.more(t)
	c.close(t)
}
