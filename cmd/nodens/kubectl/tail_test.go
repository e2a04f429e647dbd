//go:build linux

package kubectl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/fakekubectl"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// cluster is a fake kubectl with agents that follow queries.
type cluster struct {
	*fakekubectl.Kubectl
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{fakekubectl.New(t), t}
}

// pods lists pods, each as "POD NODE", whose agents show one query for the name of the pod.
func (c *cluster) pods(pods ...string) {
	c.t.Helper()
	for _, text := range pods {
		pod, _, _ := strings.Cut(text, " ")
		c.Write("pod-"+pod, fmt.Sprintf("echo '%s'; cat > /dev/null\n", c.query(pod)))
	}
	c.Write("pods", strings.Join(pods, " Running\n")+" Running\n")
}

func (c *cluster) query(name string) string {
	c.t.Helper()
	text, err := json.Marshal(report.TailLine{Header: report.Header{SchemaVersion: 1, Instance: name}, Query: &report.TailQuery{Name: name}})
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// tailing is a run of Follow.
type tailing struct {
	t      *testing.T
	mu     sync.Mutex
	events []string // "NODE NAME", or "NODE: NOTE"
	cancel context.CancelFunc
	ended  chan error
}

func (f *tailing) print(events []kubectl.TailEvent, _ uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		if e.Line != nil {
			f.events = append(f.events, e.Node+" "+e.Line.Query.Name)
		} else {
			f.events = append(f.events, e.Node+": "+e.Note)
		}
	}
	return nil
}

// follow runs Follow until the test ends, or stop.
func (c *cluster) follow(tail kubectl.Tail) *tailing {
	f := &tailing{t: c.t, ended: make(chan error, 1)}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	tail.Time, tail.Refresh, tail.Print = time.Hour, 20*time.Millisecond, f.print
	if tail.Silence == 0 {
		tail.Silence = time.Hour
	}
	tail.Args = func(time.Duration) []string { return nil }
	tail.Started = func([]string) error { return nil }
	go func() { f.ended <- kubectl.Follow(ctx, &kubectl.Cluster{Timeout: time.Minute}, &tail) }()
	c.t.Cleanup(f.cancel)
	return f
}

// await waits for an event.
func (f *tailing) await(event string) {
	f.t.Helper()
	for deadline := time.Now().Add(agenttest.Timeout); ; time.Sleep(5 * time.Millisecond) {
		f.mu.Lock()
		events := slices.Clone(f.events)
		f.mu.Unlock()
		if slices.Contains(events, event) {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("timed out waiting for %q; events: %q", event, events)
		}
	}
}

func (f *tailing) stop() {
	f.t.Helper()
	f.cancel()
	if err := <-f.ended; err != nil {
		f.t.Error(err)
	}
}

// TestFollowNewNodes: a node that joins is shown, up to 16 nodes.
func TestFollowNewNodes(t *testing.T) {
	c := newCluster(t)
	c.pods("a node-a")
	f := c.follow(kubectl.Tail{})
	f.await("node-a a")
	var pods []string
	for i := range 17 {
		pods = append(pods, fmt.Sprintf("%c node-%[1]c", 'a'+i))
	}
	c.pods(pods...)
	for i := range 16 {
		f.await(fmt.Sprintf("node-%c %[1]c", 'a'+i))
	}
	f.await("node-q: not shown, because 16 nodes are")
	f.stop()
	if n := len(f.events); n != 17 {
		t.Errorf("%d events: %q", n, f.events)
	}
}

// TestFollowPod: the command moves with the pod to another node. What fails meanwhile is noted once.
func TestFollowPod(t *testing.T) {
	c := newCluster(t)
	c.pods("a node-1", "b node-2")
	c.Write("node", "node-1\n")
	f := c.follow(kubectl.Tail{Namespace: "shop", Pod: "web-0"})
	f.await("node-1 a")
	c.Write("node", "<none>\n")
	f.await(": the pod shop/web-0 is on no node yet; trying again")
	c.Write("node", "node-2\n")
	f.await("node-2 b")
	f.stop()
	want := []string{"node-1 a", ": the pod shop/web-0 is on no node yet; trying again", "node-2: the pod shop/web-0 is here now", "node-2 b"}
	if d := cmp.Diff(want, f.events); d != "" {
		t.Errorf("events (-want +got)\n%s", d)
	}
}

// TestFollowSilence: a command that prints nothing any more is ended, and started again. It gets a line again and again,
// so that it knows when it is cut off.
func TestFollowSilence(t *testing.T) {
	c := newCluster(t)
	c.pods("a node-1", "b node-2")
	c.Write("pod-a", fmt.Sprintf("echo '%s'; cat > %s/a.stdin\n", c.query("a"), c.Dir))
	c.Write("pod-b", fmt.Sprintf("while read -r line; do echo '%s'; done\n", c.query("b")))
	f := c.follow(kubectl.Tail{Silence: 300 * time.Millisecond})
	f.await("node-1: pod a: nothing received for 300ms; trying again")
	f.await("node-1: answers again")
	f.await("node-2 b")
	f.stop()
	if text, err := os.ReadFile(filepath.Join(c.Dir, "a.stdin")); err != nil || strings.Trim(string(text), "\n") != "" {
		t.Errorf("%v, the command got %q", err, text)
	}
}

// TestFollowSlow: lines that are not printed in time are counted and not kept. Those of one node do not wait
// for another one's.
func TestFollowSlow(t *testing.T) {
	const lines, kept = 6000, 4096
	c := newCluster(t)
	c.pods("a node-1", "b node-2")
	for _, pod := range []string{"a", "b"} {
		c.Write("pod-"+pod, fmt.Sprintf("yes '%s' | head -n %d; echo > %s/%s.done; cat > /dev/null\n", c.query("x"), lines, c.Dir, pod))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var printed, most int
	var lost uint64
	err := kubectl.Follow(ctx, &kubectl.Cluster{Timeout: time.Minute}, &kubectl.Tail{
		Time: time.Hour, Refresh: time.Hour, Silence: time.Hour, Args: func(time.Duration) []string { return nil }, Started: func([]string) error { return nil },
		Print: func(events []kubectl.TailEvent, n uint64) error {
			c.awaitFile("a.done")
			c.awaitFile("b.done")
			printed, lost, most = printed+len(events), lost+n, max(most, len(events))
			if printed+int(lost) == 2*lines {
				cancel()
			}
			return nil
		},
	})
	if err != nil || printed+int(lost) != 2*lines || most != kept {
		t.Errorf("%v; %d lines printed and %d lost of %d, at most %d at once, want %d", err, printed, lost, 2*lines, most, kept)
	}
}

// awaitFile waits for a file.
func (c *cluster) awaitFile(name string) {
	for deadline := time.Now().Add(agenttest.Timeout); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(c.Dir, name)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("no file %s", name)
			return
		}
	}
}
