// These tests use agent and showTail, which are not exported.

package app

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// keptOut is a kernel path that knows until when a client is kept out.
type keptOut struct {
	*player
	addr  netip.Addr
	until time.Time
}

func (k *keptOut) KeepOut(selects func(netip.Addr) bool, d time.Duration) {
	if selects(k.addr) {
		k.until = time.Now().Add(d)
	}
}

// tailOf answers a request to /tail until ctx ends, and returns the lines, and for how long after that the client was kept
// out of the kernel path.
func tailOf(ctx context.Context, t *testing.T, target string) (lines []report.TailLine, out time.Duration) {
	t.Helper()
	addr := netip.MustParseAddr("10.0.0.1")
	table := clients.New(clients.Options{Stripes: 1})
	table.SetPod(addr, clients.Pod{Namespace: "shop", Name: "web-1", UID: "1"})
	kernel := &keptOut{player: newStage().player("kernel"), addr: addr}
	a := &agent{opts: new(options.Agent), kernelPath: &kernelPath{program: kernel}, builder: builder{tail: new(tail.Feed), clients: &attribution{table: table}}}
	reply := httptest.NewRecorder()
	a.showTail(reply, httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil))
	out = time.Until(kernel.until)
	if time.Sleep(time.Minute); time.Until(kernel.until) != out-time.Minute || a.builder.tail.Attached() {
		t.Error("the clients are kept out by a reply that has ended")
	}
	for s := bufio.NewScanner(reply.Body); s.Scan(); {
		var l report.TailLine
		check.NoError(t, json.Unmarshal(s.Bytes(), &l))
		lines = append(lines, l)
	}
	return lines, out
}

// TestTailDisconnect: the selected clients are back on the kernel path a second after the end of the request. Until
// then a line tells every five seconds that the agent is there.
func TestTailDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 62*time.Second)
		defer cancel()
		lines, out := tailOf(ctx, t, "/tail?pod=shop/web-1")
		if out <= 0 || out > keepOutTime {
			t.Errorf("the client is kept out for %s more", out)
		}
		if len(lines) != 13 || lines[0].Selected == nil {
			t.Fatalf("%d lines, want the selection and 12 heartbeats; the first one is %+v", len(lines), lines[0])
		}
		for _, l := range lines[1:] {
			if !l.Heartbeat || l.SchemaVersion != report.SchemaVersion {
				t.Errorf("the line is %+v", l)
			}
		}
	})
}

// TestTailTime: a request ends after its time, which is an hour unless it says another one, and the selected clients are
// back on the kernel path.
func TestTailTime(t *testing.T) {
	for target, want := range map[string]time.Duration{
		"/tail?namespace=shop":           time.Hour,
		"/tail?all=true&for=90s":         90 * time.Second,
		"/tail?pod=10.0.0.1&for=24h0m0s": 24 * time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			lines, out := tailOf(t.Context(), t, target)
			if took := time.Since(start) - time.Minute; took != want || out <= 0 || out > keepOutTime {
				t.Errorf("%s: ended after %s, want %s; the client is kept out for %s more", target, took, want, out)
			}
			if last := lines[len(lines)-1]; last.End == nil || last.End.Seconds != want.Seconds() {
				t.Errorf("%s: the last line is %+v", target, last)
			}
		})
	}
}
