// Inside the package: the test shares the scripted server of this package.

package upstream

import (
	"bytes"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestLookupOutage: while the name of an upstream can't be looked up, the log has one line
// at the start, one per minute, and one at the end.
func TestLookupOutage(t *testing.T) {
	resolver := startFake(t, answerLoopback(60)) // outside the bubble
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var broken atomic.Bool
		broken.Store(true)
		cfg := forwardTo()
		cfg.Resolver = []netip.AddrPort{resolver.addr}
		cfg.To = []config.Target{{Host: "upstream.test", Port: 53}}
		p := New(cfg, Options{
			Deadline: time.Second, Logger: slog.New(slog.NewTextHandler(&out, nil)),
			// A resolver that is the agent itself is not asked.
			Own: func(to netip.AddrPort) bool { return to == resolver.addr && broken.Load() },
		})
		checkLog := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := regexp.MustCompile(`(?m)^time=\S+ | failures=\d+| err=.*`).ReplaceAllString(out.String(), "")
			equal(t, strings.Join(want, "\n"), strings.TrimSpace(got), "wrong log")
			out.Reset()
		}
		time.Sleep(150 * time.Second)
		checkLog(
			`level=WARN msg="upstream name lookup failed" upstream=upstream.test:53`,
			`level=WARN msg="upstream name lookup still failing" upstream=upstream.test:53 duration=1m0s`,
			`level=WARN msg="upstream name lookup still failing" upstream=upstream.test:53 duration=2m0s`,
		)
		broken.Store(false)
		time.Sleep(maxRetry)
		synctest.Wait()
		noError(t, p.Close())
		log := out.String()
		if strings.Count(log, "\n") != 2 || !strings.Contains(log, `level=INFO msg="upstream name lookup works again" upstream=upstream.test:53 failures=`) ||
			!strings.Contains(log, "upstream addresses changed") {
			t.Errorf("log after the outage:\n%s", log)
		}
	})
}
