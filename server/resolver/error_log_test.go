// These tests use failed, failuresPerSecond and zone, matching and limiter, which are not exported.

package resolver

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/testlog"
	"github.com/nodens-dns/nodens/upstream"
)

// failing is an ErrorLog whose lines a test reads, with two patterns.
func failing(t *testing.T, plain, first bool) (fail func(error), lines func() []string, log *ErrorLog) {
	t.Helper()
	var out testlog.Buffer
	strip := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "client" {
			return slog.Attr{}
		}
		return a
	}
	to := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: strip}))
	log = &ErrorLog{Logger: to, Plain: plain, Patterns: []*Consolidation{
		{Logger: to, Level: slog.LevelWarn, Period: time.Minute, Match: regexp.MustCompile(".* i/o timeout$"), ShowFirst: first},
		{Logger: to, Level: slog.LevelDebug, Period: time.Hour, Match: regexp.MustCompile("a|b")},
	}}
	x, _ := askedOf(t, func(*dns.Msg) {}, func(r *wire.Reply) { r.Fail(wire.ServFail) })
	x.zone = &Zone{Name: wire.Root}
	fail = func(err error) { log.failed(x, err, &x.zone.failed) }
	seen := 0
	lines = func() []string {
		text := out.String()[seen:]
		seen += len(text)
		return strings.Split(strings.TrimSpace(text), "\n")
	}
	return fail, lines, log
}

// TestConsolidate: errors of a pattern are counted and told of at the end of its
// period, all others by themselves.
func TestConsolidate(t *testing.T) {
	late := fmt.Errorf("asking 192.0.2.1:53: %w", upstream.ErrTimeout)
	const (
		byItself  = `level=%s msg="query failed" zone=. qname=www.example.org. qtype=A err=%s unlogged=0`
		ofTimeout = `level=WARN msg="plugin/errors: %d errors like '.* i/o timeout$' occurred in last 1m0s"`
	)
	for name, first := range map[string]bool{"all": false, "first shown": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fail, lines, log := failing(t, false, first)
				want := func(what string, want ...string) {
					t.Helper()
					if got := lines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
						t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
					}
				}
				fail(errors.New("other"))
				want("no pattern", fmt.Sprintf(byItself, "ERROR", "other"))
				for range 7 {
					fail(late)
				}
				shown := fmt.Sprintf(byItself, "WARN", strconv.Quote(late.Error()))
				if !first {
					shown = ""
				}
				want("the first", shown)
				time.Sleep(time.Minute + time.Second)
				synctest.Wait()
				want("the end of the period", fmt.Sprintf(ofTimeout, 7))
				fail(errors.New("read: i/o timeout"))
				_ = lines()
				time.Sleep(time.Minute + time.Second)
				synctest.Wait()
				one := fmt.Sprintf(ofTimeout, 1)
				if first {
					one = "" // it was shown
				}
				want("the next period", one)
				time.Sleep(time.Hour)
				want("nothing happened", "")
				fail(errors.New("a"))
				fail(errors.New("b"))
				for _, p := range log.Patterns {
					p.Stop()
				}
				want("the end", `level=DEBUG msg="plugin/errors: 2 errors like 'a|b' occurred in last 1h0m0s"`)
				fail(errors.New("a"))
				want("after the end", fmt.Sprintf(byItself, "DEBUG", "a"))
			})
		})
	}
}

// TestPatternOfTimeout: a pattern sees the whole text of a timeout, as CoreDNS words it.
func TestPatternOfTimeout(t *testing.T) {
	p := &Consolidation{Match: regexp.MustCompile(`^asking 192\.0\.2\.1:53: .*i/o timeout$`)}
	log := &ErrorLog{Patterns: []*Consolidation{p}}
	for server, want := range map[string]*Consolidation{"192.0.2.1:53": p, "192.0.2.2:53": nil} {
		if got := log.matching(fmt.Errorf("asking %s: %w", server, upstream.ErrTimeout)); got != want {
			t.Errorf("a timeout of %s matches: %t, want %t", server, got != nil, want != nil)
		}
	}
}

// TestLimiter: so many events pass in each second of the clock; the first one after that knows how
// many did not.
func TestLimiter(t *testing.T) {
	var l limiter
	for i, step := range []struct {
		at     time.Duration
		ok     bool
		missed int64
	}{
		{1100 * time.Millisecond, true, 0}, {1500 * time.Millisecond, true, 0}, {1600 * time.Millisecond, false, 0}, {1999 * time.Millisecond, false, 0},
		{2 * time.Second, true, 2}, {2001 * time.Millisecond, true, 0}, {2002 * time.Millisecond, false, 0}, {9 * time.Second, true, 1},
	} {
		if ok, missed := l.allow(step.at, 2); ok != step.ok || missed != step.missed {
			t.Errorf("event %d at %v: passes %t after %d, want %t after %d", i, step.at, ok, missed, step.ok, step.missed)
		}
	}
}

// TestFailedPlain: the line that CoreDNS writes, and no more than ten a second of what
// is no pattern's.
func TestFailedPlain(t *testing.T) {
	fail, lines, _ := failing(t, true, false)
	for range 3 * failuresPerSecond {
		fail(errors.New("other"))
	}
	got := lines()
	if len(got) != failuresPerSecond || got[0] != `level=ERROR msg="plugin/errors: 2 www.example.org. A: other"` {
		t.Errorf("%d lines, the first %s", len(got), got[0])
	}
}

// TestPlainWords: errors that CoreDNS has, too, are in its words.
func TestPlainWords(t *testing.T) {
	for err, want := range map[error]string{
		fmt.Errorf("asking: %w", upstream.ErrNoUpstream): "no healthy proxies",
		errUnanswered:       "no next plugin found",
		upstream.ErrTooMany: upstream.ErrTooMany.Error(),
	} {
		fail, lines, log := failing(t, true, false)
		log.Patterns = nil
		fail(err)
		if got := lines(); got[0] != fmt.Sprintf(`level=ERROR msg="plugin/errors: 2 www.example.org. A: %s"`, want) {
			t.Errorf("%v is %s", err, got[0])
		}
	}
}
