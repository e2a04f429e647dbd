//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/testlog"
)

// tailLines are what an agent answers.
func tailLines() []report.TailLine {
	age := 12.4
	at := time.Date(2026, 11, 22, 21, 30, 0, 123e6, time.UTC)
	head := report.Header{SchemaVersion: 1, Node: "node-1"}
	return []report.TailLine{
		{Header: head, Selected: &report.TailSelection{Addresses: []string{}}},
		{Header: head, Selected: &report.TailSelection{Addresses: []string{"10.0.0.1", "fd00::1"}}},
		{Header: head, Query: &report.TailQuery{
			Time: at, Client: "10.0.0.1:53", Namespace: "shop", Pod: "web-1", Workload: "Deployment/web", Protocol: "udp", Name: "example.org.", Type: "A",
			Rcode: "NOERROR", Zone: ".", Source: "cache", Cache: "hit", CacheAgeSeconds: &age, DurationSeconds: 0.000021,
		}},
		{Header: head, Query: &report.TailQuery{
			Time: at, Client: "10.0.0.9:53", Namespace: "(unknown)", Protocol: "tcp", Name: "nosuch.org.", Type: "AAAA",
			Zone: ".", View: "v", Source: "forward", Cache: "miss", Upstream: "192.0.2.1:53", UpstreamSeconds: 0.25, Hedged: true, HedgeWon: true,
			SearchPath: "waste", DurationSeconds: 0.3, Error: "no reply",
		}},
		{Header: head, Lost: &report.TailLost{Limit: 5, SlowReader: 7}},
		{Header: head, Selected: &report.TailSelection{AllClients: true, Addresses: []string{}}},
	}
}

// TestTail: what the command asks for, and its output.
func TestTail(t *testing.T) {
	var asked string
	socket := topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		for _, l := range append(tailLines(), report.TailLine{Heartbeat: true}, report.TailLine{End: new(report.TailEnd)}) {
			_ = json.NewEncoder(w).Encode(l)
		}
	})
	code, out, stderr := outcome(t, "tail", "--admin-socket", socket, "--pod", "shop/web-1", "--name", "org", "--rcode", "NOERROR", "--slow", "1ms")
	want := `TIME CLIENT NAME TYPE RCODE SOURCE CACHE AGE UPSTREAM UPTIME DURATION
21:30:00.123 shop/web-1 example.org. A NOERROR cache hit 12s - - 21µs
21:30:00.123 10.0.0.9:53 nosuch.org. AAAA - forward miss - 192.0.2.1:53 250ms 300ms
`
	if squeeze(out) != want || code != 0 || asked != "/tail?for=1h0m0s&name=org&pod=shop%2Fweb-1&rcode=NOERROR&slow=1ms" {
		t.Errorf("%d, asked %s\n%s", code, asked, cmp.Diff(want, squeeze(out)))
	}
	hasTexts(t, stderr,
		"node node-1: no such client now; waiting for one\n", "node node-1: queries from 10.0.0.1, fd00::1\n", "node node-1: queries of all clients\n",
		"not shown: 5 queries beyond 1000 a second, 7 that this command was too slow for\n", "ended after 1h0m0s; --for changes this\n",
	)
	_, out, _ = outcome(t, "tail", "--admin-socket", socket, "--all-clients", "-o", "wide")
	if !strings.Contains(squeeze(out), " 300ms . v - tcp won waste - no reply\n") || !strings.Contains(squeeze(out), " 21µs . - Deployment/web udp - - - -\n") || asked != "/tail?all=true&for=1h0m0s" {
		t.Errorf("asked %s, wide:\n%s", asked, out)
	}
	_, out, _ = outcome(t, "tail", "--admin-socket", socket, "--namespace", "shop", "-o", "json")
	var l report.TailLine
	if lines := strings.Split(out, "\n"); len(lines) != 9 || json.Unmarshal([]byte(lines[2]), &l) != nil || !cmp.Equal(l, tailLines()[2]) {
		t.Errorf("json:\n%s", out)
	}
}

// TestTailUsage: which clients are watched must be said.
func TestTailUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"give --pod or --namespace, or --all-clients":                {"tail"},
		"--all-clients and a selection of clients; give one of them": {"tail", "--all-clients", "--pod", "a"},
		"--for 0s; give a time such as 10m, at most 24h":             {"tail", "--all-clients", "--for", "0s"},
		"give the agent --handover-dir":                              {"tail", "--all-clients", "--admin-socket", t.TempDir() + "/none"},
	} {
		if code, _, stderr := outcome(t, args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %q", args, code, stderr)
		}
	}
}

// startTail runs the command with stdin until it ends.
func startTail(t *testing.T, stdin io.Reader, args ...string) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{t: t, cancel: cancel, code: make(chan int, 1)}
	root := newRootCommand()
	root.SetIn(stdin)
	go func() { f.code <- execute(ctx, root, append([]string{"tail"}, args...), &f.out, &f.errors) }()
	t.Cleanup(cancel)
	return f
}

// awaitCode waits for the end of the command.
func (f *following) awaitCode(want int) {
	f.t.Helper()
	select {
	case code := <-f.code:
		if code != want {
			f.t.Errorf("exit code %d, want %d; stderr:\n%s", code, want, f.errors.String())
		}
	case <-time.After(agenttest.Timeout):
		f.t.Fatalf("the command does not end; stderr:\n%s", f.errors.String())
	}
}

// TestTailStdin: the command ends with its standard input, or when that brings nothing for too long, and the agent has
// one reader less then.
func TestTailStdin(t *testing.T) {
	p := peer.Ports(t, 1)
	socket := filepath.Join(t.TempDir(), "a.sock")
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.1 a.test\n }\n}\n", p[0]), "-admin-socket", socket)
	// There are four readers at most, so each turn needs the end of those before it.
	for range 3 {
		var list []*following
		var inputs []*io.PipeWriter
		for i := range 4 {
			stdin, w := io.Pipe()
			args := []string{"--admin-socket", socket, "--all-clients", "--until-stdin-closes"}
			if i == 0 {
				args = append(args, "--stdin-timeout", "200ms")
			}
			list, inputs = append(list, startWhenFree(t, stdin, args...)), append(inputs, w)
		}
		for i, f := range list {
			if i > 0 {
				agenttest.Ask(t, p[0], "a.test.")
				f.awaitText(&f.out, " a.test. A NOERROR hosts ")
				_, _ = inputs[i].Write([]byte("\n"))
				_ = inputs[i].Close()
			}
			f.awaitCode(0)
		}
	}
}

// startWhenFree is startTail, again until the agent has room for it, and returns when it has.
func startWhenFree(t *testing.T, stdin io.Reader, args ...string) *following {
	t.Helper()
	f := startTail(t, stdin, args...)
	f.await("room at the agent", func() bool {
		if strings.Contains(f.errors.String(), "queries of all clients") {
			return true
		}
		select {
		case <-f.code:
			f = startTail(t, stdin, args...)
		default:
		}
		return false
	})
	return f
}

// TestTailUnread: the command ends with its standard input also if nobody reads its output.
func TestTailUnread(t *testing.T) {
	p := peer.Ports(t, 1)
	socket := filepath.Join(t.TempDir(), "a.sock")
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n whoami\n}\n", p[0]), "-admin-socket", socket)
	stdin, w := io.Pipe()
	out, stuck := io.Pipe()
	defer out.Close()
	root := newRootCommand()
	root.SetIn(stdin)
	code := make(chan int, 1)
	go func() {
		code <- execute(t.Context(), root, []string{"tail", "--admin-socket", socket, "--all-clients", "--until-stdin-closes"}, stuck, io.Discard)
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil { // the first byte of the first line, and no more
		t.Fatal(err)
	}
	_ = w.Close()
	select {
	case n := <-code:
		if n != 0 {
			t.Errorf("exit code %d", n)
		}
	case <-time.After(agenttest.Timeout):
		t.Fatal("the command does not end")
	}
}

// TestTailPipe: the command ends when nobody can read its output any more, also without a query.
func TestTailPipe(t *testing.T) {
	socket := topAgentFunc(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(tailLines()[5])
		for r.Context().Err() == nil {
			_ = json.NewEncoder(w).Encode(report.TailLine{Heartbeat: true})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	})
	r, w, err := os.Pipe()
	check.NoError(t, err)
	defer w.Close()
	var errors testlog.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"tail", "--admin-socket", socket, "--all-clients"}, w, &errors)
	}()
	if _, err := r.Read(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if len(code) > 0 || unread(w) {
		t.Fatal("the command takes the pipe to be closed")
	}
	_ = r.Close()
	select {
	case n := <-code:
		if n != 0 || !unread(w) || errors.String() != "node node-1: queries of all clients\n" {
			t.Errorf("exit code %d, unread %v, stderr:\n%s", n, unread(w), errors.String())
		}
	case <-time.After(agenttest.Timeout):
		t.Fatal("the command does not end")
	}
}

// TestTailHandover: the command goes on with the agent that takes over.
func TestTailHandover(t *testing.T) {
	p := peer.Ports(t, 3)
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, p[2])
	first := startAgentProcess(t, withCache(p[0], p[1], p[2]), "-handover-dir", dir)
	f := startTail(t, strings.NewReader(""), "--handover-dir", dir, "--all-clients")
	f.awaitText(&f.errors, "queries of all clients")
	agenttest.Ask(t, p[0], "www.example.org.")
	f.awaitText(&f.out, " www.example.org. A NOERROR forward ")
	next := startAgentProcess(t, withCache(p[0], p[1], p[2]), "-handover-dir", dir)
	first.awaitExit(0)
	f.await("the next agent's line", func() bool { return strings.Count(f.errors.String(), "queries of all clients") == 2 })
	agenttest.Ask(t, p[0], "ftp.example.org.")
	f.awaitText(&f.out, " ftp.example.org. A NOERROR forward ")
	if text := f.errors.String(); strings.Count(text, "waiting for the next one") != 1 {
		t.Errorf("stderr:\n%s", text)
	}
	next.end()
	f.await("the second end", func() bool { return strings.Count(f.errors.String(), "waiting for the next one") == 2 })
	f.cancel()
	f.awaitCode(0)
}

// TestTailNoAgent: the command ends with an error if no agent answers for a while after one has ended.
func TestTailNoAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	end := make(chan func(), 1)
	end <- serveAdmin(t, path, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(tailLines()[1])
		_ = http.NewResponseController(w).Flush()
		(<-end)()
	})
	f := &tailFlags{patience: 10 * time.Millisecond, socket: adminSocket{path: path}, all: true, time: time.Hour}
	var out, errors testlog.Buffer
	err := f.run(t.Context(), &tailPrinter{stdout: &out, stderr: &errors, output: cli.AddLinesOutput(pflag.NewFlagSet("", pflag.ContinueOnError))}, f.followNode)
	if want := "the agent has ended, and no other has answered at " + path + " for 10ms"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s; stderr:\n%s", err, want, errors.String())
	}
	if !strings.Contains(errors.String(), "node node-1: queries from 10.0.0.1, fd00::1\nthe agent has ended") {
		t.Errorf("stderr:\n%s", errors.String())
	}
}
