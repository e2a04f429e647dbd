//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// TestPredecessorResumes: a successor that fails when it has taken over already gives everything
// back, and no query is lost.
func TestPredecessorResumes(t *testing.T) {
	for _, fault := range [][]string{
		{"-pidfile", "/dev/null/pid"},
		{"-admin-socket", "/dev/null/admin"},
	} {
		t.Run(fault[0], func(t *testing.T) {
			p := peer.Ports(t, 3)
			port, web, up := p[0], p[1], p[2]
			dir := filepath.Join(t.TempDir(), "handover")
			origin(t, up)
			agent := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
			c := newCrowd(port, "www.example.org.", "192.0.2.1", "udp", "udp", "udp")
			next := newAgentProcess(t, withCache(port, web, up), nil, append([]string{"-handover-dir", dir}, fault...)...)
			next.AwaitLog("took over")
			next.awaitExit(1)
			agent.AwaitLog("serving again")
			// Then it leaves the node's rules alone, which are not made here.
			if !strings.Contains(next.Log.String(), "the predecessor resumes") {
				t.Errorf("the successor takes down what is not its own:\n%s", next.Log)
			}
			c.more(t)
			startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
			agent.awaitExit(0)
			c.more(t)
			c.close(t)
		})
	}
}
