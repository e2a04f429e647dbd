//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// maxCommandMemory bounds the memory of a command that asks an agent, without the pages of its file, which it
// shares with the agent. It takes about 3 MiB.
const maxCommandMemory = 8 << 20

// maxAgentMemory bounds the memory of an agent after its start, with the pages of its file.
const maxAgentMemory = 25 << 20

// memoryOf returns a field of /proc/PID/status in bytes, such as RssAnon: the resident anonymous memory.
func memoryOf(pid int, field string) (n int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), field+":")
	if _, err = fmt.Sscan(rest, &n); !ok || err != nil {
		return 0, fmt.Errorf("no %s in %s", field, b)
	}
	return n << 10, nil
}

// TestAgentMemory: an agent with a view of a cluster and the page takes little memory after its start, after a query as
// before.
func TestAgentMemory(t *testing.T) {
	race.SkipSequential(t)
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	objects, conf := filepath.Join(dir, "objects.yaml"), filepath.Join(dir, "Corefile")
	agenttest.WriteFile(t, objects, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1]}\n")
	agenttest.WriteFile(t, conf, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n errors\n cache 30\n kubernetes cluster.local {\n  manifests %s\n }\n forward . 127.0.0.1:1\n}\n", p[0], objects))
	agent := newProcessOn(t, conf, nil, "-setupinterface=false", "-setupiptables=false", "-health-port=0",
		"-handover-dir", filepath.Join(dir, "handover"), "-page", fmt.Sprintf("127.0.0.1:%d", p[1]))
	agent.AwaitLog("the page is served")
	agent.AwaitLog("serving")
	check := func(when string) {
		// The pages are released just after the line is logged.
		poll.Until(t, "little memory "+when, func() bool {
			n, err := memoryOf(agent.cmd.Process.Pid, "VmRSS")
			check.NoError(t, err)
			return n <= maxAgentMemory
		})
		rss, _ := memoryOf(agent.cmd.Process.Pid, "VmRSS")
		anonymous, _ := memoryOf(agent.cmd.Process.Pid, "RssAnon")
		t.Logf("%s: %.1f MiB, of which %.1f MiB anonymous", when, float64(rss)/(1<<20), float64(anonymous)/(1<<20))
	}
	check("after the start")
	agenttest.Expect(t, p[0], "web.shop.svc.cluster.local.", "10.96.0.1")
	check("after a query")
}

// TestCommandMemory: a command that asks an agent does not allocate what an agent needs.
func TestCommandMemory(t *testing.T) {
	if race.Enabled() {
		t.Skip("the race detector needs memory of its own")
	}
	for args, requests := range map[string]int32{"status": 3, "upstreams": 1, "top": 1, "plan": 1} {
		path := filepath.Join(t.TempDir(), "s")
		cmd := exec.CommandContext(t.Context(), os.Args[0], args, "--admin-socket", path)
		cmd.Env = append(os.Environ(), asProcess+"=agent")
		started, asked := make(chan struct{}), new(atomic.Int32)
		stop := serveAdmin(t, path, func(w http.ResponseWriter, _ *http.Request) {
			<-started
			asked.Add(1)
			if n, err := memoryOf(cmd.Process.Pid, "RssAnon"); err != nil || n == 0 || n > maxCommandMemory {
				t.Errorf("%s has %d KiB of anonymous memory, want %d at most, %v", args, n>>10, maxCommandMemory>>10, err)
			}
			_, _ = w.Write([]byte(`{"ready":true,"healthy":true}`))
		})
		var out strings.Builder
		cmd.Stdout = &out // a pipe: top is not to refresh
		check.NoError(t, cmd.Start())
		close(started)
		if err := cmd.Wait(); err != nil || asked.Load() != requests {
			t.Errorf("%s: %v, asked %d times\n%s", args, err, asked.Load(), out.String())
		}
		stop()
	}
}
