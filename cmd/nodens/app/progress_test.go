// These tests use agent and its log, which are not exported.

package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// stuckHandler blocks each record until release is closed.
type stuckHandler struct {
	slog.Handler
	release chan struct{}
}

func (h stuckHandler) Handle(context.Context, slog.Record) error {
	<-h.release
	return nil
}

func (h stuckHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

// TestHealthOfReaders: /health fails while a reader stands still, which nothing but a restart ends, and status says so.
func TestHealthOfReaders(t *testing.T) {
	p := peer.Ports(t, 2)
	release := make(chan struct{})
	var started *agent
	a := startChanged(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n health 127.0.0.1:%d\n log\n whoami\n}\n", p[0], p[1]), func(a *agent) {
		started = a
		a.progress.interval = time.Millisecond
		a.builder.log = slog.New(stuckHandler{a.log.Handler(), release})
	})
	health := func() (int, string) { return agenttest.Get(t, p[1], "/health") }
	if code, body := health(); code != http.StatusOK || body != "OK" {
		t.Fatalf("%d %q", code, body)
	}
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", p[0]))
	check.NoError(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01"); err != nil {
		t.Fatal(err)
	}
	a.Await("the failure", func() bool { code, _ := health(); return code == http.StatusServiceUnavailable })
	if _, body := health(); !strings.Contains(body, "a reader of a UDP socket does not continue") {
		t.Errorf("%q", body)
	}
	if s := started.status(); s.Healthy || len(s.Problems) != 1 || s.Problems[0].Code != "stuck" {
		t.Errorf("%v", s.Problems)
	}
	close(release)
	a.Await("the recovery", func() bool { code, _ := health(); return code == http.StatusOK })
}

// TestWaitersStuck: queries that wait and never end make /health fail, too, but only after a minute.
func TestWaitersStuck(t *testing.T) {
	var p progress
	for range maxWaiterStops - 1 {
		count(&p.waiters, false)
	}
	if err := p.err(); err != nil {
		t.Error(err)
	}
	count(&p.waiters, false)
	if err := p.err(); err == nil {
		t.Error("no error")
	}
	count(&p.waiters, true)
	if err := p.err(); err != nil {
		t.Error(err)
	}
}

// TestLogNotices: lines that are missing are a line in the log's format.
func TestLogNotices(t *testing.T) {
	for format, want := range map[string]string{
		options.LogText:    `level=WARN msg="lines of the log are missing here, because they were not read in time" dropped=1` + "\n",
		options.LogJSON:    `"level":"WARN","msg":"lines of the log are missing here, because they were not read in time","dropped":1}` + "\n",
		options.LogCoreDNS: "[WARNING] lines of the log are missing here, because they were not read in time dropped=1\n",
	} {
		var out bytes.Buffer
		log, err := openLog(format, &out, slog.LevelError)
		check.NoError(t, err)
		_, _ = log.queue.Write(append(bytes.Repeat([]byte("x"), 16<<20), '\n'))
		log.queue.Close(time.Minute)
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("%s: %q", format, out.String())
		}
	}
}

// TestLogProblem: status says what is wrong with the log, and for how long.
func TestLogProblem(t *testing.T) {
	now := time.Now()
	for want, q := range map[string]logqueue.Stats{
		"": {WritingSince: now.Add(-time.Second), Dropped: 3, DroppedAt: now.Add(-time.Hour)},
		"nobody has read the log (standard error) for 1m0s; 3 lines dropped so far":                     {WritingSince: now.Add(-time.Minute), Dropped: 3},
		"3 lines of the log dropped since the start, the last one 1m0s ago: it is not read fast enough": {Dropped: 3, DroppedAt: now.Add(-time.Minute)},
	} {
		if got := logProblem(q, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
