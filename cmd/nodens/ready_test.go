//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// TestReadyCommand: it tells whether there is an agent, and whether that one is ready.
func TestReadyCommand(t *testing.T) {
	if code, _, stderr := outcome(t, "ready"); code != 2 || !strings.Contains(stderr, "--handover-dir") {
		t.Errorf("without a folder: code %d, %s", code, stderr)
	}
	dir := filepath.Join(t.TempDir(), "handover")
	if code, _, stderr := outcome(t, "ready", "-handover-dir", dir); code != 1 || !strings.Contains(stderr, dir) {
		t.Errorf("without an agent: code %d, %s", code, stderr)
	}
	p := peer.Ports(t, 2)
	startAgent(t, withCache(p[0], p[1], p[1]), "-handover-dir", dir)
	if code, _, stderr := outcome(t, "ready", "-handover-dir", dir); code != 0 {
		t.Errorf("with an agent: code %d, %s", code, stderr)
	}
	if code, _, stderr := outcome(t, "cleanup", "-handover-dir", dir); code != 1 || !strings.Contains(stderr, "stop it first") {
		t.Errorf("cleaning up beside an agent: code %d, %s", code, stderr)
	}
	agenttest.Expect(t, p[0], "x.test.", "SERVFAIL")
}
