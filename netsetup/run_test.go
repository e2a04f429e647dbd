// These tests use recheck and lockWait, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// startRun starts Run; stop ends it.
func startRun(s *Setup) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

func TestRunRepairsAtEveryInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode()
		c := dualStack()
		c.Interval = 10 * time.Second
		s := newSetup(t, c, f)
		apply(t, s)
		want := f.dump()
		stop := startRun(s)

		time.Sleep(c.Interval + time.Nanosecond) // the bubble's clock
		synctest.Wait()
		if got := s.Stats(); got.Checks != 2 || got.Repairs != 0 {
			t.Errorf("an untouched node, at the start and after the interval: %+v", got)
		}
		if err := f.DeleteInterface(DefaultInterfaceName); err != nil { // link and both addresses
			t.Fatal(err)
		}
		time.Sleep(c.Interval)
		synctest.Wait()
		check.Equal(t, want, f.dump(), "after the interval")
		// The link, its going up, two addresses.
		if got := s.Stats(); got.Checks != 3 || got.Repairs != 4 {
			t.Errorf("Checks, Repairs = %d, %d; want 3, 4", got.Checks, got.Repairs)
		}
		stop()
	})
}

// Rules that another agent writes while it takes over are left alone, until it has given up or a minute has passed.
func TestRunLeavesRulesToSuccessor(t *testing.T) {
	for _, tt := range []struct {
		name         string
		takes, waits time.Duration
	}{
		{"it gives up", 20 * time.Second, 20 * time.Second},
		{"it hangs", time.Hour, maxTakeover},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, began := newFakeNode(), time.Now()
				c := dualStack()
				c.Interval = 10 * time.Second
				c.TakingOver = func() bool { return time.Since(began) < tt.takes }
				s := newSetup(t, c, f)
				apply(t, s)
				want := f.dump()
				_, _ = s.removeRules(t.Context())
				changed := f.dump()
				stop := startRun(s)
				defer stop()
				time.Sleep(tt.waits - time.Second)
				synctest.Wait()
				check.Equal(t, changed, f.dump(), "while the other agent takes over")
				time.Sleep(2 * time.Second)
				synctest.Wait()
				check.Equal(t, want, f.dump(), "afterwards")
			})
		})
	}
}

func TestRunDefaultsToAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, dualStack(), newFakeNode())
		apply(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		s.Run(ctx)
		if got := s.Stats().Checks; got != 11 {
			t.Errorf("%d re-checks in 10 minutes, want one at the start and 10", got)
		}
	})
}

func TestRunGoesOnAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		f := newFakeNode()
		var log strings.Builder
		c := dualStack()
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s := newSetup(t, c, f)
		f.fail = func(call string) error {
			switch {
			case strings.Contains(call, "-S"):
				return ErrLocked
			case strings.HasPrefix(call, "Addrs"):
				return errors.New("no buffer space available")
			}
			return nil
		}
		if err := s.EnsureInterface(t.Context()); err == nil {
			t.Error("Links succeeded")
		}
		if err := s.EnsureRules(t.Context()); err == nil {
			t.Error("Rules succeeded")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*DefaultInterval+time.Second)
		defer cancel()
		s.Run(ctx)
		want := Stats{
			// The start and four re-checks, one of them at once; the lock once for each
			// family.
			Errors:  map[ErrorType]uint64{Iptables: 0, IptablesLock: 10, InterfaceAdd: 0, InterfaceCheck: 5},
			Checks:  4,
			Backend: "iptables (model)",
			// The rules have been missing from the start.
			RulesSince: began,
		}
		check.Equal(t, want, s.Stats(), "it differs")
		for _, w := range []string{"re-check of the interface failed", "re-check of the rules failed", "no buffer space"} {
			if !strings.Contains(log.String(), w) {
				t.Errorf("the log lacks %q:\n%s", w, log.String())
			}
		}

		f.fail = nil
		ctx, cancel = context.WithTimeout(t.Context(), DefaultInterval+time.Second)
		defer cancel()
		s.Run(ctx)
		wantComplete(t, f, s, "after the failures")
	})
}

func TestRunKeepsOnlyWhatWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode()
		s := newSetup(t, dualStack(), f)
		empty := f.dump()
		go s.Run(t.Context())
		time.Sleep(DefaultInterval + time.Second)
		check.Equal(t, empty, f.dump(), "Run before Links")
		check.NoError(t, s.EnsureInterface(t.Context()))
		time.Sleep(DefaultInterval)
		if strings.Contains(f.dump(), "NODENS") {
			t.Errorf("Run before Rules, so before the sockets listen, makes rules:\n%s", f.dump())
		}
		apply(t, s)
		check.NoError(t, s.Teardown(0, nil))
		time.Sleep(2 * DefaultInterval)
		check.Equal(t, empty, f.dump(), "Run after Teardown")
	})
}

// TestRunRepairsAtALoss: what was lost before Run, which nobody tells of, is put right when it begins, and then at once what
// the kernel tells of.
func TestRunRepairsAtALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode()
		s := newSetup(t, dualStack(), f)
		apply(t, s)
		want := f.dump()
		lose := func() {
			check.NoError(t, f.DeleteInterface(DefaultInterfaceName))
		}
		lose()
		start := time.Now()
		defer startRun(s)()
		for i := range 4 {
			if i > 0 {
				lose()
				f.signalRemoval()
			}
			synctest.Wait()
			check.Equal(t, want, f.dump(), "after loss %d", i)
			if took := time.Since(start); took != 0 {
				t.Errorf("it took %v", took)
			}
		}
		if got := s.Stats(); got.Checks != 4 || got.Repairs != 16 {
			t.Errorf("%+v", got)
		}
	})
}

// TestTeardownWaitsForARecheck starts Teardown while a re-check is about to write
// rules: those must be gone at the end.
func TestTeardownWaitsForARecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode()
		empty := f.dump()
		s := newSetup(t, dualStack(), f)
		apply(t, s)
		check.NoError(t, f.runIptables("iptables -t raw -F NODENS-OUTPUT"))
		var calls atomic.Int32
		entered, resume := make(chan struct{}), make(chan struct{})
		f.fail = func(call string) error {
			if strings.Contains(call, "-restore") && calls.Add(1) == 1 {
				close(entered)
				<-resume
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		go s.recheck(ctx)
		<-entered
		cancel() // as SIGTERM does
		down := make(chan error)
		go func() { down <- s.Teardown(0, nil) }()
		synctest.Wait()
		select {
		case err := <-down:
			t.Fatalf("Teardown did not wait: %v", err)
		default:
		}
		close(resume)
		check.NoError(t, <-down)
		check.Equal(t, empty, f.dump(), "it differs")
	})
}

// TestTeardownIsBounded checks, on the bubble's clock, that Teardown starts no call to iptables after its
// budget, and that it returns within the time that its documentation promises.
func TestTeardownIsBounded(t *testing.T) {
	tests := []struct {
		name string
		fail func(t *testing.T, f *fakeNode, s *Setup, stuck chan struct{})
		want string
	}{
		{"every call waits for the lock in vain", func(_ *testing.T, f *fakeNode, _ *Setup, _ chan struct{}) {
			f.fail = func(call string) error {
				if strings.Contains(call, "tables") {
					time.Sleep(lockWait)
					return ErrLocked
				}
				return nil
			}
		}, "xtables lock"},
		{"every program is slow", func(_ *testing.T, f *fakeNode, _ *Setup, _ chan struct{}) {
			f.fail = func(call string) error {
				if strings.Contains(call, "tables") {
					time.Sleep(time.Second)
				}
				return nil
			}
		}, "deadline exceeded"},
		{"a call never returns", func(_ *testing.T, f *fakeNode, _ *Setup, stuck chan struct{}) {
			f.fail = func(string) error { <-stuck; return nil }
		}, "not finished after 2.8s"},
		{"a re-check never returns", func(t *testing.T, f *fakeNode, s *Setup, stuck chan struct{}) {
			f.fail = func(string) error { <-stuck; return nil }
			ctx, cancel := context.WithCancel(t.Context())
			go s.recheck(ctx)
			synctest.Wait()
			cancel() // as SIGTERM does
		}, "a re-check is still under way"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNode()
				s := newSetup(t, dualStack(), f)
				s.teardownBudget = teardownBudget
				apply(t, s)
				stuck := make(chan struct{})
				tt.fail(t, f, s, stuck)
				start, fail := time.Now(), f.fail
				f.fail = func(call string) error {
					if after := time.Since(start); after >= teardownBudget && strings.Contains(call, "tables") {
						t.Errorf("%q was called %v after the start", call, after)
					}
					return fail(call)
				}
				err := s.Teardown(0, nil)
				if took := time.Since(start); took >= 3*time.Second {
					t.Errorf("Teardown took %v of the 3 s it promises", took)
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error lacks %q: %v", tt.want, err)
				}
				close(stuck)
				time.Sleep(time.Minute) // of the bubble: what was stuck ends
			})
		})
	}
}

// TestTeardownExtra: a teardown that its own time is too short for completes in the time that the stop
// has left for it.
func TestTeardownExtra(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNode()
		s := newSetup(t, dualStack(), f)
		s.teardownBudget = teardownBudget
		apply(t, s)
		f.fail = func(call string) error {
			if strings.Contains(call, "tables") {
				time.Sleep(time.Second)
			}
			return nil
		}
		if err := s.Teardown(0, nil); err == nil {
			t.Fatal("the teardown was complete without extra time")
		}
		if err := s.Teardown(time.Hour, nil); err != nil {
			t.Error("with extra time:", err)
		}
		if f.dump() != newFakeNode().dump() {
			t.Errorf("left:\n%s", f.dump())
		}
	})
}
