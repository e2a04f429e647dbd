// Package agenttest runs agents in the process of a test, and asks them. The test gives the
// function that runs the agent, so that tests of the command and of the application
// package share all the rest.
package agenttest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/scrape"
	"github.com/nodens-dns/nodens/test/testlog"
)

// Timeout ends a test that would hang. No test measures it.
const Timeout = 30 * time.Second

// Agent is an agent and its files. Its methods fail the test on errors; call them from the
// test's goroutine.
type Agent struct {
	T    testing.TB
	Conf string // path of the Corefile
	Log  *testlog.Buffer

	cancel context.CancelFunc
	ended  chan error // of capacity 1; closed after the agent's error
}

// Start writes corefile to a file of its own and runs an agent on it until the test ends.
// It returns when the agent's log says that it serves. The function serve runs an agent on
// the file conf until ctx ends, and logs to log in text form.
func Start(tb testing.TB, corefile string, serve func(ctx context.Context, conf string, log io.Writer) error) *Agent {
	tb.Helper()
	a := &Agent{T: tb, Conf: WriteCorefile(tb, corefile), Log: new(testlog.Buffer), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	go func() {
		defer close(a.ended)
		a.ended <- serve(ctx, a.Conf, a.Log)
	}()
	tb.Cleanup(a.Stop)
	a.AwaitLog("msg=serving")
	return a
}

// Stop ends the agent and waits for its end. Further calls do nothing.
func (a *Agent) Stop() {
	a.T.Helper()
	a.cancel()
	select {
	case err := <-a.ended:
		if err != nil {
			a.T.Errorf("the agent ended with %v", err)
		}
	case <-time.After(Timeout):
		a.T.Error("the agent does not end")
	}
}

// Await waits until the condition holds, which what names.
func (a *Agent) Await(what string, holds func() bool) {
	a.T.Helper()
	deadline := time.Now().Add(Timeout)
	for !holds() {
		if time.Now().After(deadline) {
			a.T.Fatalf("timed out waiting for %s; log:\n%s", what, a.Log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// AwaitLog waits until the log contains text.
func (a *Agent) AwaitLog(text string) {
	a.T.Helper()
	a.Await("the log to say "+text, func() bool { return strings.Contains(a.Log.String(), text) })
}

// WriteCorefile writes text to a new file and returns its path.
func WriteCorefile(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "Corefile")
	WriteFile(tb, path, text)
	return path
}

// WriteFile replaces the file's contents by text.
func WriteFile(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// Ask asks for the A records of name on 127.0.0.1 over UDP. It returns the first address of
// the reply, else the name of its rcode, else the error's text.
func Ask(tb testing.TB, port uint16, name string) string {
	tb.Helper()
	c := dns.Client{Timeout: Timeout}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err.Error()
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return dns.RcodeToString[m.Rcode]
}

// Get returns the status and the body of a path on 127.0.0.1. The text of /metrics is current (see [scrape.Text]).
func Get(tb testing.TB, port uint16, path string) (status int, body string) {
	tb.Helper()
	if path == "/metrics" {
		text, err := scrape.Text(tb.Context(), http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
		if err != nil {
			tb.Fatal(err)
		}
		return http.StatusOK, text
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Metric returns the value of a series, with its labels, on /metrics; "" if there is none.
func Metric(tb testing.TB, port uint16, series string) string {
	tb.Helper()
	_, text := Get(tb, port, "/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Expect fails the test, and goes on, unless [Ask] returns want.
func Expect(tb testing.TB, port uint16, name, want string) {
	tb.Helper()
	if got := Ask(tb, port, name); got != want {
		tb.Errorf("%s at port %d is %s, want %s", name, port, got, want)
	}
}

// ExpectMetrics fails the test, and goes on, unless the text of /metrics contains each of want.
func ExpectMetrics(tb testing.TB, port uint16, want ...string) {
	tb.Helper()
	_, text := Get(tb, port, "/metrics")
	for _, w := range want {
		if !strings.Contains(text, w) {
			tb.Errorf("the metrics have no %s", w)
		}
	}
	if tb.Failed() {
		tb.Logf("the metrics:\n%s", text)
	}
}
