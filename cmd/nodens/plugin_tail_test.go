//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/testlog"
)

// lines writes a file with lines of an agent for the name of a pod: what is selected, a query for that name, and
// what is lost.
func (k *fakeKubectl) lines(pod string) {
	k.t.Helper()
	head := report.Header{SchemaVersion: 1, Instance: pod}
	at := time.Date(2026, 11, 22, 21, 30, 0, 123e6, time.UTC)
	var b strings.Builder
	for _, l := range []report.TailLine{
		{Header: head, Selected: &report.TailSelection{Addresses: []string{"10.0.0.1"}}},
		{Header: head, Heartbeat: true},
		{Header: head, Query: &report.TailQuery{
			Time: at, Client: "10.0.0.1:53", Namespace: "shop", Pod: "web-1", Protocol: "udp", Name: pod + ".test.", Type: "A", Rcode: "NOERROR", Source: "cache", Cache: "hit", DurationSeconds: 0.000021,
		}},
		{Header: head, Lost: &report.TailLost{Limit: 5}},
	} {
		text, err := json.Marshal(l)
		if err != nil {
			k.t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	k.Write(pod+".lines", b.String())
}

// tailPod adds a pod whose agent shows lines. The command writes its process id to a file, and another
// file when its standard input ends.
func (k *fakeKubectl) tailPod(pod, node string) {
	k.t.Helper()
	k.lines(pod)
	k.Pod(pod, node, "Running", fmt.Sprintf("echo $$ > %[1]s/%[2]s.pid; cat %[1]s/%[2]s.lines; cat > /dev/null; echo > %[1]s/%[2]s.over\n", k.Dir, pod))
}

// there reports whether a file exists.
func (k *fakeKubectl) there(name string) bool {
	_, err := os.Stat(filepath.Join(k.Dir, name))
	return err == nil
}

// ended reports whether the process of a pod's command has ended.
func (k *fakeKubectl) ended(pod string) bool {
	k.t.Helper()
	text, err := os.ReadFile(filepath.Join(k.Dir, pod+".pid"))
	if err != nil {
		k.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		k.t.Fatal(err)
	}
	return syscall.Kill(pid, 0) == syscall.ESRCH
}

// following is a command of the plugin that runs until stop.
type following struct {
	t           *testing.T
	out, errors testlog.Buffer
	cancel      context.CancelFunc
	code        chan int
}

func startPlugin(t *testing.T, line string) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{t: t, cancel: cancel, code: make(chan int, 1)}
	go func() { f.code <- execute(ctx, newPluginCommand(), strings.Fields(line), &f.out, &f.errors) }()
	t.Cleanup(cancel)
	return f
}

// await waits until a condition holds.
func (f *following) await(what string, holds func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(agenttest.Timeout); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("timed out waiting for %s; stdout:\n%s\nstderr:\n%s", what, f.out.String(), f.errors.String())
		}
	}
}

// awaitText waits until one of the outputs has a text.
func (f *following) awaitText(b *testlog.Buffer, text string) {
	f.t.Helper()
	f.await(text, func() bool { return strings.Contains(squeeze(b.String()), text) })
}

// stop ends the command, whose exit code must be 0.
func (f *following) stop() {
	f.t.Helper()
	f.cancel()
	if code := <-f.code; code != 0 {
		f.t.Errorf("exit code %d; stderr:\n%s", code, f.errors.String())
	}
}

// TestPluginTail: the lines of all nodes, with the node of each. When the command ends, the commands in the
// pods do, because their standard input is closed.
func TestPluginTail(t *testing.T) {
	k := newFakeKubectl(t)
	k.tailPod("a", "node-1")
	k.tailPod("b", "node-two")
	k.Pod("c", "<none>", "Pending", "exit 9\n")
	f := startPlugin(t, "tail --pod-namespace shop --name example.org --slow 1ms --rcode NOERROR --for 10m --timeout 1m")
	for pod, node := range map[string]string{"a": "node-1", "b": "node-two"} {
		f.awaitText(&f.out, "\n"+node+" 21:30:00.123 shop/web-1 "+pod+".test. A NOERROR cache hit - - - 21µs\n")
		f.awaitText(&f.errors, "node "+node+": queries from 10.0.0.1\n")
		f.awaitText(&f.errors, "node "+node+": not shown: 5 queries beyond 1000 a second, 0 that this command was too slow for\n")
	}
	f.stop()
	for _, pod := range []string{"a", "b"} {
		if !k.ended(pod) || !k.there(pod+".over") {
			t.Errorf("the command in %s: ended %v, at the end of its standard input %v", pod, k.ended(pod), k.there(pod+".over"))
		}
	}
	if lines := strings.Split(f.out.String(), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "NODE      TIME  ") {
		t.Errorf("stdout:\n%s", f.out.String())
	}
	want := "--namespace kube-system exec a --stdin -- nodens tail -o json --for=10m0s --name=example.org --namespace=shop --rcode=NOERROR --slow=1ms --stdin-timeout 30s"
	if asked := strings.Join(k.Asked(), "\n"); !strings.Contains(asked+"\n", want+"\n") {
		t.Errorf("no %q in\n%s", want, asked)
	}
}

// TestPluginTailJSON: each line has the node.
func TestPluginTailJSON(t *testing.T) {
	k := newFakeKubectl(t)
	k.tailPod("a", "node-1")
	k.tailPod("b", "node-2")
	f := startPlugin(t, "tail --all-clients --node node-2 -o json --timeout 1m")
	f.awaitText(&f.out, `"lost"`)
	f.stop()
	lines := strings.Split(strings.TrimSpace(f.out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), f.out.String())
	}
	for _, text := range lines {
		var l report.TailLine
		if err := json.Unmarshal([]byte(text), &l); err != nil || l.Node != "node-2" || l.Instance != "b" {
			t.Errorf("%v %s", err, text)
		}
	}
	if k.there("a.pid") || f.errors.String() != "" {
		t.Errorf("a command on the other node, or stderr %q", f.errors.String())
	}
}

// TestPluginTailPod: only the agent on the pod's node is asked.
func TestPluginTailPod(t *testing.T) {
	k := newFakeKubectl(t)
	k.tailPod("a", "node-1")
	k.tailPod("b", "node-2")
	k.Write("node", "node-2\n")
	f := startPlugin(t, "tail --pod shop/web-1 --timeout 1m")
	f.awaitText(&f.out, "node-2 21:30:00.123 shop/web-1 b.test. ")
	f.stop()
	if k.there("a.pid") {
		t.Error("a command runs on another node, too")
	}
	want := []string{
		"--namespace shop get pod web-1 --no-headers -o custom-columns=NODE:.spec.nodeName",
		"--namespace kube-system get pods --selector k8s-app=node-local-dns --no-headers -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase",
		"--namespace kube-system exec b --stdin -- nodens tail -o json --for=1h0m0s --pod=shop/web-1 --stdin-timeout 30s",
	}
	check.Equal(t, want, k.Asked(), "kubectl gets")
}

// TestPluginTailRetries: a node whose command fails is named, and shown again when it answers. The new pod of an
// upgrade is found.
func TestPluginTailRetries(t *testing.T) {
	k := newFakeKubectl(t)
	k.tailPod("a", "node-1")
	k.lines("b")
	k.Pod("b", "node-2", "Running", fmt.Sprintf("if [ -e %[1]s/b.repaired ]; then cat %[1]s/b.lines; cat > /dev/null; exit; fi; echo 'error: no such container' >&2; exit 1\n", k.Dir))
	k.lines("c")
	k.Pod("c", "node-3", "Running", fmt.Sprintf("cat %[1]s/c.lines; while [ ! -e %[1]s/c.gone ]; do sleep 0.02; done; exit 137\n", k.Dir))
	f := startPlugin(t, "tail --all-clients --timeout 1m")
	f.awaitText(&f.errors, "node node-2: pod b: error: no such container; trying again\n")
	k.Write("b.repaired", "")
	f.awaitText(&f.out, "\nnode-2 21:30:00.123 shop/web-1 b.test. ")
	f.awaitText(&f.errors, "node node-2: answers again\n")
	f.awaitText(&f.out, "\nnode-3 21:30:00.123 shop/web-1 c.test. ")
	k.Write("pods", "")
	k.tailPod("c-next", "node-3")
	k.Write("c.gone", "")
	f.awaitText(&f.errors, "node node-3: pod c: exit status 137; trying again\n")
	f.awaitText(&f.out, "\nnode-3 21:30:00.123 shop/web-1 c-next.test. ")
	f.stop()
	if n := strings.Count(f.errors.String(), "no such container"); n != 1 {
		t.Errorf("the failure is noted %d times:\n%s", n, f.errors.String())
	}
}

// TestPluginTailKilled: commands that do not end with their standard input are killed.
func TestPluginTailKilled(t *testing.T) {
	k := newFakeKubectl(t)
	k.tailPod("a", "node-1")
	k.Write("pod-a", fmt.Sprintf("echo $$ > %[1]s/a.pid; cat %[1]s/a.lines; exec sleep 600\n", k.Dir))
	f := startPlugin(t, "tail --all-clients --timeout 1m")
	f.awaitText(&f.out, "a.test.")
	f.stop()
	if !k.ended("a") {
		t.Error("the command runs on")
	}
}

// TestPluginTailErrors: what the command says if no node can be shown.
func TestPluginTailErrors(t *testing.T) {
	k := newFakeKubectl(t)
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"tail", 2, "no clients are selected; give --pod or --pod-namespace, or --all-clients"},
		{"tail --pod web-1", 2, "--pod web-1 has no namespace; give --pod NAMESPACE/web-1, or --node"},
		{"tail --all-clients", 1, "no pod in the namespace kube-system has the labels"},
	} {
		if code, out, stderr := pluginOutcome(t, c.line); code != c.code || out != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %q %q, want %d %q", c.line, code, out, stderr, c.code, c.want)
		}
	}
	k.Pod("a", "node-1", "Running", "cat > /dev/null\n")
	k.Pod("b", "node-2", "Pending", "exit 9\n")
	k.Pod("c", "node-3", "Running", "echo '{\"schemaVersion\":2}'; cat > /dev/null\n")
	k.Pod("d", "node-4", "Running", "echo '<html>'; cat > /dev/null\n")
	k.Pod("e", "node-5", "Running", "head -c 100000 /dev/zero | tr '\\0' x; cat > /dev/null\n")
	k.Pod("f", "node-6", "Running", "echo 'nodens tail: the agent refused: rcode is \"X\"' >&2; echo 'command terminated with exit code 1' >&2; exit 1\n")
	for node, want := range map[string]string{
		"node-1": "pod a: no answer in 50ms",
		"node-2": "pod b: the pod is Pending",
		"node-3": "pod c: the reply has the schema version 2, and this program knows 1; use the program of the agent's version",
		"node-4": "pod d: the reply is not valid: invalid character",
		"node-5": "pod e: a line of more than 64 KiB",
		"node-6": `pod f: nodens tail: the agent refused: rcode is "X"`,
	} {
		timeout := "1m"
		if node == "node-1" {
			timeout = "50ms"
		}
		code, _, stderr := pluginOutcome(t, "tail --all-clients --node "+node+" --timeout "+timeout)
		if want := "kubectl nodens: no agent has answered; node " + node + ", " + want; code != 1 || !strings.HasPrefix(stderr, want) {
			t.Errorf("%s: %d %q, want %q", node, code, stderr, want)
		}
	}
	if code, _, stderr := pluginOutcome(t, "tail --all-clients --node nosuch"); code != 1 || !strings.Contains(stderr, "no pod of an agent is on the node nosuch") {
		t.Errorf("%d %s", code, stderr)
	}
	for i := range 11 {
		k.Pod(fmt.Sprint("p", i), fmt.Sprint("other-", i), "Running", "exit 1\n")
	}
	if code, _, stderr := pluginOutcome(t, "tail --all-clients"); code != 1 || !strings.Contains(stderr, "agents run on 17 nodes, and a tail shows 16 at most; give --node, or --pod NAMESPACE/NAME") {
		t.Errorf("%d %s", code, stderr)
	}
}
