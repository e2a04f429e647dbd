//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestWarmStart: an agent that finds nobody to take over from starts with what was saved
// at the last one's end, and without if that is broken.
func TestWarmStart(t *testing.T) {
	s := newSuccession(t)
	first := s.start()
	s.ask()
	first.end()
	s.upstream.Stop()
	saved, err := os.ReadFile(filepath.Join(s.dir, "cache"))
	check.NoError(t, err)
	second := s.start()
	s.ask()
	s.wantMetric("nodens_cache_restored_entries", "1")
	s.wantMetric(`nodens_handovers_total{result="complete",role="successor"}`, "0")
	second.end()

	saved[len(saved)/2] ^= 0x40
	agenttest.WriteFile(t, filepath.Join(s.dir, "cache"), string(saved))
	third := s.start()
	if got := third.Log.String(); strings.Count(got, "reading the saved cache failed") != 1 {
		t.Errorf("want one line about the broken file in the log:\n%s", got)
	}
	s.wantMetric("nodens_cache_restored_entries", "0")
	third.end()
}

// TestCrash: what was asked for since the last save is lost with a process that is killed,
// and nothing else: the next one starts as usual over what it has left.
func TestCrash(t *testing.T) {
	s := newSuccession(t)
	first := s.start()
	first.signal(syscall.SIGKILL)
	first.awaitExit(-1)
	s.start()
	s.ask()
	s.wantReady()
}

// TestNoFolder: a folder that can't be is the flag's fault.
func TestNoFolder(t *testing.T) {
	p := peer.Ports(t, 2)
	a := newAgentProcess(t, withCache(p[0], p[1], p[1]), nil, "-handover-dir", "/dev/null/handover")
	a.awaitExit(1)
	if got := a.Log.String(); !strings.Contains(got, "-handover-dir: mkdir /dev/null") {
		t.Errorf("the error does not name the flag:\n%s", got)
	}
}

// TestPidfileNotWritten: an agent that can't write its pidfile serves, as CoreDNS does.
func TestPidfileNotWritten(t *testing.T) {
	s := newSuccession(t, "-pidfile", "/dev/null/pid")
	agent := s.start()
	agent.AwaitLog("writing --pidfile /dev/null/pid: ")
	s.ask()
}
