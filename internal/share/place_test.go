package share_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// TestPlaceIsContext: the context ends when the place is lost or the Limiter is closed, and only then; so
// do contexts derived from it, without a goroutine of their own.
func TestPlaceIsContext(t *testing.T) {
	tests := map[string]struct {
		end    func(l *share.Limiter)
		closes bool
		want   error
	}{
		"lost":   {end: func(l *share.Limiter) { l.Acquire(new(share.Place), loopback) }, want: share.ErrEvicted},
		"closed": {end: (*share.Limiter).Close, closes: true, want: context.Canceled},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p := share.NewLimiter(1), new(share.Place)
				for range 2 { // the place is used again
					l.Acquire(p, loopback)
					if tt.closes && p.Err() != nil {
						break // acquired from a closed limiter
					}
					derived, cancel := context.WithTimeout(p, time.Hour)
					ran, stopped := false, false
					p.AfterFunc(func() { ran = true })
					stop := p.AfterFunc(func() { stopped = true })
					select {
					case <-p.Done():
						t.Fatal("the context has ended before the place is lost")
					case <-derived.Done():
						t.Fatal("the derived context has ended before the place is lost")
					default:
					}
					if !stop() || stop() {
						t.Error("a function is not stopped once")
					}
					tt.end(l)
					<-p.Done()
					<-derived.Done()
					for what, err := range map[string]error{"place": p.Err(), "cause": context.Cause(p), "derived": derived.Err()} {
						if !errors.Is(err, tt.want) || !errors.Is(err, context.Canceled) {
							t.Errorf("%s: %v, want %v", what, err, tt.want)
						}
					}
					late := make(chan bool, 1)
					if p.AfterFunc(func() { late <- true })() {
						t.Error("a function is stopped that runs at once")
					}
					cancel()
					l.Release(p)
					if !ran || stopped || len(late) != 1 {
						t.Errorf("after the release: ran %v, stopped one ran %v, late one ran %d times", ran, stopped, len(late))
					}
					if !tt.closes {
						l = share.NewLimiter(1)
					}
				}
				if _, ok := p.Deadline(); ok || p.Value("any") != nil {
					t.Error("the context has a deadline or a value")
				}
			})
		})
	}
}

// TestPlaceReleased: functions of a place that is released do not run for its next holder.
func TestPlaceReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := share.NewLimiter(1), new(share.Place)
		l.Acquire(p, loopback)
		done := p.Done()
		stop := p.AfterFunc(func() { t.Error("it runs") })
		l.Release(p)
		l.Acquire(p, loopback)
		if p.Done() != done {
			t.Error("the channel of a place that was not lost is not used again")
		}
		l.Acquire(new(share.Place), loopback)
		synctest.Wait()
		if stop() {
			t.Error("it was still to run")
		}
	})
}
