// Inside the package: the test replaces the function that connects.

package dnstap

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
)

// serveConn accepts a stream on conn and reads it to its end.
func serveConn(conn net.Conn) error {
	r := bufio.NewReader(conn)
	if _, _, err := readControl(r); err != nil {
		return err
	}
	if _, err := conn.Write(controlFrame(controlAccept, contentType)); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, r)
	return err
}

// TestOutage: an outage of the collector costs one line at its start, one per minute and
// one at its end, with the messages dropped.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tap := New(config.Dnstap{Network: "unix", Address: "s", Queue: 2}, "v", slog.New(slog.NewTextHandler(&out, nil)))
		var reachable atomic.Bool
		var peer atomic.Pointer[net.Conn]
		tap.dial = func(context.Context) (net.Conn, error) {
			if !reachable.Load() {
				return nil, errors.New("refused")
			}
			ours, theirs := net.Pipe()
			peer.Store(&theirs)
			go func() { _ = serveConn(theirs) }()
			return ours, nil
		}
		checkLog := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := regexp.MustCompile(`(?m)^time=\S+ | endpoint=unix://s| failures=\d+`).ReplaceAllString(out.String(), "")
			if diff := cmp.Diff(strings.Join(want, "\n"), strings.TrimSpace(got)); diff != "" {
				t.Errorf("wrong log (-want +got):\n%s", diff)
			}
			out.Reset()
		}
		stop := runTap(t, tap)

		synctest.Wait()
		for range 5 {
			tap.Send(clientQuery(1))
		}
		time.Sleep(125 * time.Second)
		checkLog(
			`level=WARN msg="collector unreachable" dropped=0 err=refused`,
			`level=WARN msg="collector still unreachable" dropped=3 duration=1m0s err=refused`,
			`level=WARN msg="collector still unreachable" dropped=3 duration=2m0s err=refused`,
		)
		reachable.Store(true)
		time.Sleep(maxBackoff + time.Second)
		synctest.Wait()
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=INFO msg="collector reachable again" endpoint=unix://s dropped=3 failures=`) {
			t.Errorf("log after the outage:\n%s", got)
		}
		out.Reset()

		_ = (*peer.Load()).Close()
		time.Sleep(2 * maxBackoff)
		checkLog(
			`level=WARN msg="collector unreachable" dropped=0 err="the collector disconnected: EOF"`,
			`level=INFO msg="collector reachable again" dropped=0 duration=0s`,
		)
		stop()
		checkLog()
	})
}

// TestNoOutage: the first connection is logged as such, and no end of an outage.
func TestNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tap := New(config.Dnstap{Network: "unix", Address: "s", Queue: 2}, "v", slog.New(slog.NewTextHandler(&out, nil)))
		tap.dial = func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _ = serveConn(theirs) }()
			return ours, nil
		}
		stop := runTap(t, tap)
		synctest.Wait()
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `msg="collector connected" endpoint=unix://s`) {
			t.Errorf("log:\n%s", got)
		}
		stop()
	})
}
