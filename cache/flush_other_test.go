// Inside the package: the helpers are, and it sets the state of an outage.

package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestFlushOfAnotherName: a flush leaves the calls for other names, and those of other caches in
// the same store, alone: their replies are cached.
func TestFlushOfAnotherName(t *testing.T) {
	for _, tt := range []struct {
		name    string
		flushed string
		other   bool // the flush is of another cache
		subtree bool
		cached  bool
	}{
		{"the name", "www.example.", false, false, false},
		{"beside it", "web.example.", false, false, true},
		{"below it", "a.www.example.", false, true, true},
		{"above it, alone", "example.", false, false, true},
		{"the name in another cache", "www.example.", true, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewStore(testBudget, Options{})
			c, d := s.NewCache(defaults()), s.NewCache(defaults())
			a := newExchangeStub(t)
			q := question(t, "www.example.", dns.TypeA)
			done := make(chan error)
			go func() { done <- fetchErr(c.Fetch(t.Context(), q, reply(q), a.run)) }()
			synctest.Wait()
			if tt.other {
				d.Flush([]byte(wireName(t, tt.flushed)), tt.subtree)
			} else {
				c.Flush([]byte(wireName(t, tt.flushed)), tt.subtree)
			}
			close(a.gate)
			noError(t, <-done)
			if got := answer(t, c, q) != nil; got != tt.cached {
				t.Errorf("%s: the reply is cached %v, want %v", tt.name, got, tt.cached)
			}
		})
	}
}

// TestProbeInterval: in an outage one client asks the upstream each second, the next at the
// very end of the interval.
func TestProbeInterval(t *testing.T) {
	c := newCache(nil, Options{})
	start := time.Hour
	if c.claimProbe(start) {
		t.Error("a probe without an outage")
	}
	c.failures.count.Store(outageThreshold)
	for _, tt := range []struct {
		after time.Duration
		want  bool
	}{
		{0, true}, {0, false}, {probeInterval - 1, false}, {probeInterval, true}, {probeInterval, false}, {3 * probeInterval, true},
	} {
		if got := c.claimProbe(start + tt.after); got != tt.want {
			t.Errorf("after %v: probe %v, want %v", tt.after, got, tt.want)
		}
	}
}
