//go:build linux

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
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

// TestReadyWithoutDirectory: an agent that may not write to --handover-dir serves, and the probe of its container finds it.
func TestReadyWithoutDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose directory it is")
	}
	const dir, memory = "/sys/kernel", "/dev/shm/nodens-sys-kernel" // no file can be created in /sys
	t.Cleanup(func() { check.NoError(t, os.RemoveAll(memory)) })
	p := peer.Ports(t, 2)
	a := startAgent(t, withCache(p[0], p[1], p[1]), "-handover-dir", dir)
	a.AwaitLog("no successor can take over from this agent")
	if code, _, stderr := outcome(t, "ready", "-handover-dir", dir); code != 0 {
		t.Errorf("while it serves: code %d, %s", code, stderr)
	}
	a.Stop()
	if code, _, stderr := outcome(t, "ready", "-handover-dir", dir); code != 1 || !strings.Contains(stderr, "no agent listens") {
		t.Errorf("after the end: code %d, %s", code, stderr)
	}
}

// TestReadyWithoutSocket: so does an agent whose socket's place has a directory, as of a mount.
func TestReadyWithoutSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "handover")
	check.NoError(t, os.MkdirAll(filepath.Join(dir, handover.SocketName), 0o700))
	check.NoError(t, os.Chmod(dir, 0o700))
	t.Cleanup(func() { check.NoError(t, os.RemoveAll("/dev/shm/nodens"+strings.ReplaceAll(dir, "/", "-"))) })
	p := peer.Ports(t, 2)
	a := startAgent(t, withCache(p[0], p[1], p[1]), "-handover-dir", dir)
	a.AwaitLog(handover.SocketName + " is in the way")
	if code, _, stderr := outcome(t, "ready", "-handover-dir", dir); code != 0 {
		t.Errorf("code %d, %s", code, stderr)
	}
}

// TestReadyExplain: the lines, the exit codes and the JSON for what an agent may say of itself.
func TestReadyExplain(t *testing.T) {
	unready := report.Problem{Code: "not-ready", Severity: "warning", Text: "not ready: no view yet"}
	down := report.Problem{Code: "upstreams-down", Severity: "critical", Text: "all upstreams are down"}
	stale := report.Problem{Code: "view-stale", Severity: "warning", Text: "stale\nsince noon"}
	now, longAgo := time.Now().UTC().Truncate(time.Second), time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name                  string
		status                report.Status
		condition, events     string // the lines, each with a line break
		conditionNo, eventsNo int    // the exit codes
	}{
		{"well", report.Status{}, "DNSReady: the agent answers the node's queries\n", "", 0, 0},
		{"not ready, and upstreams down", report.Status{Problems: []report.Problem{unready, down}}, "NotReady: not ready: no view yet\nUpstreamsDown: all upstreams are down\n", "", 1, 0},
		{"a stale view", report.Status{Problems: []report.Problem{stale}}, "DNSReady: the agent answers the node's queries\n", "ViewStale: stale?since noon\n", 0, 1},
		{"rules of others", report.Status{Restored: report.Restored{Total: 1, Last: &now}}, "DNSReady: the agent answers the node's queries\n",
			"RulesRestored: rules or addresses that another program had changed were restored at " + now.Format(time.RFC3339) + "\n", 0, 1},
		{"rules of others, long ago", report.Status{Restored: report.Restored{Total: 1, Last: &longAgo}}, "DNSReady: the agent answers the node's queries\n", "", 0, 0},
	} {
		socket := topAgentFunc(t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(c.status) })
		for _, ask := range []struct {
			args []string
			want string
			code int
		}{{nil, c.condition, c.conditionNo}, {[]string{"--events"}, c.events, c.eventsNo}} {
			args := append([]string{"ready", "--explain", "--admin-socket", socket}, ask.args...)
			if code, out, stderr := outcome(t, args...); code != ask.code || out != ask.want {
				t.Errorf("%s, %v: %d %q %q, want %d %q", c.name, ask.args, code, out, stderr, ask.code, ask.want)
			}
			var got readyExplanation
			code, out, _ := outcome(t, append(args, "-o", "json")...)
			err := json.Unmarshal([]byte(out), &got)
			if want := map[int]string{0: "OK", 1: "NonOK"}[ask.code]; err != nil || code != ask.code || got.Status != want || (len(got.Problems) > 0) != (ask.code == 1) {
				t.Errorf("%s, %v, as JSON: %v, %d\n%s", c.name, ask.args, err, code, out)
			}
		}
	}
	if code, _, stderr := outcome(t, "ready", "--events"); code != 2 || !strings.Contains(stderr, "--events goes with --explain") {
		t.Errorf("--events alone: %d %s", code, stderr)
	}
}

// TestReadyPlugin: the rules for node-problem-detector in the manual, with an agent and without.
func TestReadyPlugin(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/node-condition.md")
	check.NoError(t, err)
	_, text, _ := strings.Cut(string(page), "```json\n")
	text, _, _ = strings.Cut(text, "```")
	var config struct {
		Rules []struct {
			Type string
			Args []string
		}
	}
	check.NoError(t, json.Unmarshal([]byte(text), &config))
	codes := func(dir string) (list []int) {
		for _, rule := range config.Rules {
			args := slices.Clone(rule.Args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "/var/lib/nodens", dir)
			}
			code, out, _ := outcome(t, args...)
			if code == 2 && !strings.HasPrefix(out, "Unknown: asking the agent at "+dir) {
				t.Errorf("%v prints %q", args, out)
			}
			list = append(list, code)
		}
		return list
	}
	none := t.TempDir()
	if d := cmp.Diff([]int{2, 2}, codes(none)); d != "" {
		t.Errorf("without an agent (-want +got):\n%s", d)
	}
	p := peer.Ports(t, 2)
	_, dir := adminOf(t, withCache(p[0], p[1], p[1]))
	if d := cmp.Diff([]int{0, 0}, codes(dir)); d != "" {
		t.Errorf("with an agent (-want +got):\n%s", d)
	}
}
