//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
)

// problemsAt returns the problems in the status of the agent at dir.
func problemsAt(t *testing.T, dir string) string {
	t.Helper()
	_, out, stderr := outcome(t, "status", "-o", "json", "--handover-dir", dir)
	var s report.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %s%s", err, out, stderr)
	}
	if s.Healthy != (len(s.Problems) == 0) {
		t.Errorf("healthy is %v with the problems %q", s.Healthy, s.Problems)
	}
	texts := make([]string, len(s.Problems))
	for i, p := range s.Problems {
		texts[i] = p.String()
	}
	return strings.Join(texts, "\n")
}

// TestTwoAgents: two agents at one address that don't hand over to each other both say so, with the name and PID of
// the other one, until one of them has ended. The second one says it before it listens.
func TestTwoAgents(t *testing.T) {
	p := peer.Ports(t, 2)
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts\n prometheus 127.0.0.1:%d\n}\n", p[0], p[1])
	dirs := []string{t.TempDir(), t.TempDir()}
	one := startAgentProcess(t, corefile, "-handover-dir", dirs[0])
	if got := problemsAt(t, dirs[0]); got != "" {
		t.Fatalf("alone it has problems: %s", got)
	}
	two := startAgentProcess(t, corefile, "-handover-dir", dirs[1])
	agents, others := []*process{one, two}, []*process{two, one}
	for i, agent := range agents {
		for _, want := range []string{
			fmt.Sprintf("(pid %d)", others[i].cmd.Process.Pid), fmt.Sprintf("udp 127.0.0.1:%d", p[0]), fmt.Sprintf("tcp 127.0.0.1:%d", p[0]), fmt.Sprintf("tcp 127.0.0.1:%d", p[1]),
		} {
			agent.Await("its status to name the other agent", func() bool { return strings.Contains(problemsAt(t, dirs[i]), want) })
		}
	}
	log := two.Log.String()
	if said, serving := strings.Index(log, "another process listens at the agent's addresses"), strings.Index(log, "msg=serving"); said < 0 || said > serving {
		t.Error("the second agent does not name the first one before it serves")
	}
	_ = two.cmd.Process.Kill()
	<-two.exited
	one.Await("the problem to end", func() bool { return problemsAt(t, dirs[0]) == "" })
}

// TestManyHandovers: the third handover within an hour is a problem, whichever agents it was between; a rollout and
// its undoing are none. An agent that shares its sockets with its predecessor is no other process.
func TestManyHandovers(t *testing.T) {
	p := peer.Ports(t, 2)
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts\n prometheus 127.0.0.1:%d\n}\n", p[0], p[1])
	dir := t.TempDir()
	const many = "the node changes hands too often"
	startAgentProcess(t, corefile, "-handover-dir", dir)
	for handovers := 1; handovers <= 4; handovers++ {
		agent := startAgentProcess(t, corefile, "-handover-dir", dir)
		problems := problemsAt(t, dir)
		if handovers < 3 {
			if problems != "" || strings.Contains(agent.Log.String(), many) {
				t.Errorf("after %d handovers there are problems: %s", handovers, problems)
			}
			continue
		}
		if want := fmt.Sprintf("%d handovers within 1h", handovers); !strings.HasPrefix(problems, want) || strings.Contains(problems, "\n") {
			t.Errorf("the problems are %q, want %q", problems, want)
		}
		if !strings.Contains(agent.Log.String(), many) {
			t.Error("the log does not say so")
		}
	}
}
