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
)

// TestWarmStart: an agent that finds nobody to take over from starts with what was saved
// at the last one's end, and without if that is broken.
func TestWarmStart(t *testing.T) {
	p := peer.Ports(t, 3)
	port, web, up := p[0], p[1], p[2]
	dir := filepath.Join(t.TempDir(), "handover")
	upstream := origin(t, up)
	first := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	agenttest.Expect(t, port, "www.example.org.", "192.0.2.1")
	first.signal(syscall.SIGTERM)
	first.awaitExit(0)
	upstream.Stop()
	saved, err := os.ReadFile(filepath.Join(dir, "cache"))
	if err != nil {
		t.Fatal(err)
	}
	second := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	agenttest.Expect(t, port, "www.example.org.", "192.0.2.1")
	if got := agenttest.Metric(t, web, "nodens_cache_restored_entries"); got != "1" {
		t.Errorf("%q answers were found, want 1", got)
	}
	if got := agenttest.Metric(t, web, `nodens_handovers_total{result="complete",role="successor"}`); got != "0" {
		t.Errorf("%q hand-overs are counted, want 0", got)
	}
	second.signal(syscall.SIGTERM)
	second.awaitExit(0)

	saved[len(saved)/2] ^= 0x40
	agenttest.WriteFile(t, filepath.Join(dir, "cache"), string(saved))
	third := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	if got := third.Log.String(); strings.Count(got, "reading the saved cache failed") != 1 {
		t.Errorf("want one line about the broken file in the log:\n%s", got)
	}
	if got := agenttest.Metric(t, web, "nodens_cache_restored_entries"); got != "0" {
		t.Errorf("%q answers were found in a broken file", got)
	}
	third.signal(syscall.SIGTERM)
	third.awaitExit(0)
}

// TestCrash: what was asked for since the last save is lost with a process that is killed,
// and nothing else: the next one starts as usual over what it has left.
func TestCrash(t *testing.T) {
	p := peer.Ports(t, 3)
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, p[2])
	first := startAgentProcess(t, withCache(p[0], p[1], p[2]), "-handover-dir", dir)
	first.signal(syscall.SIGKILL)
	first.awaitExit(-1)
	startAgentProcess(t, withCache(p[0], p[1], p[2]), "-handover-dir", dir)
	agenttest.Expect(t, p[0], "www.example.org.", "192.0.2.1")
	if code, text := agenttest.Get(t, p[1], "/ready"); code != 200 {
		t.Errorf("/ready is %d %s", code, text)
	}
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
