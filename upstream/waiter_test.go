// Inside the package: the tests use simulated transports, and see which exchanges are parked.

package upstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/wire"
)

// started is an exchange that no goroutine waits for, and what became of it.
type started struct {
	Waiter
	Exchange
	ctx            context.Context
	ready, resumed atomic.Int32
	flushed        atomic.Int32 // what Ready has returned
	result         chan error
	answer         wire.Response
}

// startParked starts an exchange and parks it.
func startParked(t *testing.T, ctx context.Context, p *Pool, name string, from From) *started {
	t.Helper()
	return startParkedOn(t, ctx, p, name, from, nil)
}

// startParkedOn is startParked on the sockets of a set; nil is no set.
func startParkedOn(t *testing.T, ctx context.Context, p *Pool, name string, from From, set *pollset.Set) *started {
	t.Helper()
	s := &started{ctx: ctx, result: make(chan error, 1)}
	s.ReadBy = set
	s.Ready = func() func() {
		s.ready.Add(1)
		s.wait()
		return func() { s.flushed.Add(1) }
	}
	s.Resume = func() {
		s.resumed.Add(1)
		go s.wait()
	}
	var ok bool
	if s.Exchange, ok = p.Start(question(t, name), from, &s.Waiter); !ok {
		t.Fatal("the exchange would have to wait")
	}
	switch {
	case s.Park(ctx):
	case set != nil: // the goroutine that reads the set has been faster
		go s.wait()
	default:
		t.Fatal("the exchange is over, or has to be waited for")
	}
	return s
}

func (s *started) wait() {
	var err error
	s.answer, err = s.Wait(s.ctx)
	s.result <- err
}

// TestReady: the first reply ends an exchange on the goroutine that reads from the server.
func TestReady(t *testing.T) {
	for _, over := range []string{"udp", "tcp"} {
		t.Run(over, func(t *testing.T) {
			release := make(chan struct{})
			f := startFake(t, func(r request) {
				if r.Question[0].Name == "held.test." {
					<-release
				}
				answerOK(r)
			})
			p := newPool(t, longTimeout(f))
			if _, err := p.Exchange(t.Context(), question(t, "first.test."), over == "tcp"); err != nil {
				t.Fatal(err)
			}
			s := startParked(t, t.Context(), p, "held.test.", From{TCP: over == "tcp"})
			close(release)
			if err := <-s.result; err != nil || s.answer.Answers != 1 {
				t.Errorf("%d answers, %v", s.answer.Answers, err)
			}
			if s.ready.Load() != 1 || s.resumed.Load() != 0 {
				t.Errorf("Ready was called %d times, and Resume %d times", s.ready.Load(), s.resumed.Load())
			}
			eventually(t, "the reply is passed on", func() bool { return s.flushed.Load() == 1 })
			count(t, p.Stats().InFlight, 0, "exchanges are in flight")
		})
	}
}

// TestResume: whatever is not a plain reply makes a goroutine wait, which goes on as if it had waited from the beginning.
func TestResume(t *testing.T) {
	tests := map[string]script{
		"truncated": func(r request) {
			m := r.answer(1)
			m.Truncated = r.over == "udp"
			r.reply(m)
		},
		"without EDNS": func(r request) {
			m := r.answer(1)
			if r.IsEdns0() != nil {
				m.Answer, m.Rcode = nil, dns.RcodeFormatError
			}
			m.Extra = nil
			r.reply(m)
		},
		"another rcode": func(r request) {
			m := r.answer(1)
			if r.nth == 1 {
				m.Answer, m.Rcode = nil, dns.RcodeServerFailure
			}
			r.reply(m)
		},
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			f := startFake(t, func(r request) {
				<-release
				s(r)
			})
			cfg := longTimeout(f, startFake(t, answerOK))
			if name == "another rcode" {
				cfg.Failover = []wire.Rcode{wire.ServFail}
			}
			p := newPool(t, cfg)
			x := startParked(t, t.Context(), p, "held.test.", From{})
			close(release)
			if err := <-x.result; err != nil || x.answer.Answers != 1 {
				t.Errorf("%d answers, %v", x.answer.Answers, err)
			}
			if x.ready.Load() != 0 || x.resumed.Load() != 1 {
				t.Errorf("Ready was called %d times, and Resume %d times", x.ready.Load(), x.resumed.Load())
			}
		})
	}
}

// TestResumeInTime: a goroutine waits from the time on at which another server may be asked, and as soon as the exchange has to end.
// No timer is left to a single exchange.
func TestResumeInTime(t *testing.T) {
	tests := map[string]struct {
		event func(p *Pool, s *started, cancel func())
		after time.Duration
		want  error
	}{
		"late":       {func(*Pool, *started, func()) {}, defaultHedgeDelay, nil},
		"soft error": {func(_ *Pool, s *started, _ func()) { s.x.queries[0].reportSoftError() }, 0, nil},
		"cancelled": {func(_ *Pool, s *started, cancel func()) {
			cancel()
			s.Interrupt()
		}, 0, context.Canceled},
		"closed": {func(p *Pool, _ *started, _ func()) { go p.Close() }, 0, ErrClosed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				silent := newSimulated(0)
				silent.silent = true
				p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53", "192.0.2.2:53"), Options{}, silent, newSimulated(time.Millisecond))
				defer p.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin, goroutines := time.Now(), runtime.NumGoroutine()
				s := startParked(t, ctx, p, "a.test.", From{Client: 1})
				if n := runtime.NumGoroutine(); n > goroutines {
					t.Errorf("%d goroutines wait", n-goroutines)
				}
				tt.event(p, s, cancel)
				for s.resumed.Load() == 0 && time.Since(begin) < time.Second {
					time.Sleep(time.Millisecond)
					synctest.Wait()
				}
				if took := time.Since(begin); took < tt.after || took > tt.after+time.Millisecond {
					t.Errorf("a goroutine waits after %v, want %v", took, tt.after)
				}
				if err := <-s.result; !errors.Is(err, tt.want) {
					t.Errorf("the result is %v, want %v", err, tt.want)
				}
				if s.ready.Load() != 0 || s.resumed.Load() != 1 {
					t.Errorf("Ready was called %d times, and Resume %d times", s.ready.Load(), s.resumed.Load())
				}
				count(t, len(p.parked.heap), 0, "exchanges are still parked")
			})
		})
	}
}

// TestNotParked: an exchange that is over, or whose context has ended, is not parked.
func TestNotParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, simulatedServer), Options{}, newSimulated(time.Millisecond))
		w := Waiter{Ready: func() func() { t.Error("Ready is called"); return nil }, Resume: func() { t.Error("Resume is called") }}
		for _, late := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			e, ok := p.Start(question(t, "a.test."), From{Client: 1}, &w)
			if !ok {
				t.Fatal("the exchange would have to wait")
			}
			if late {
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
			} else {
				cancel()
			}
			if e.Park(ctx) {
				t.Error("the exchange is parked")
			}
			if _, err := e.Wait(ctx); late != (err == nil) {
				t.Errorf("the result is %v", err)
			}
			cancel()
		}
		p.Close()
		if _, ok := p.Start(question(t, "a.test."), From{Client: 1}, &w); ok {
			t.Error("a closed pool starts an exchange")
		}
	})
}

// TestParkedOrder: exchanges are taken in the order of their times, whatever else was removed.
func TestParkedOrder(t *testing.T) {
	var p parkedExchanges
	start := time.Now().Add(time.Hour)
	left := make(map[*exchange]bool)
	for range 500 {
		x := &exchange{waiter: new(Waiter)}
		p.park(x, start.Add(time.Duration(rand.IntN(100))))
		left[x] = true
	}
	for x := range left {
		if rand.IntN(2) == 0 {
			p.remove(x)
			p.remove(x)
			delete(left, x)
		}
	}
	p.timer.Stop()
	for last := start; len(p.heap) > 0; {
		x := p.heap[0]
		p.removeAt(0)
		if !left[x] || x.parkedAt != 0 || x.nextCheck.Before(last) {
			t.Fatalf("an exchange of %v comes after %v", x.nextCheck.Sub(start), last.Sub(start))
		}
		last = x.nextCheck
		delete(left, x)
	}
	if len(left) > 0 {
		t.Errorf("%d exchanges are lost", len(left))
	}
}

// panickingTap is a tap that panics.
type panickingTap struct{}

func (panickingTap) Exchanged(*Sent) { panic("boom") }

// TestReadyPanics: a panic after the reply ends the exchange, and the goroutine that reads from the server goes on.
func TestReadyPanics(t *testing.T) {
	release := make(chan struct{})
	f := startFake(t, func(r request) {
		if r.Question[0].Name == "held.test." {
			<-release
		}
		answerOK(r)
	})
	p := newPool(t, longTimeout(f))
	s := &started{ctx: t.Context()}
	panicked := make(chan any)
	s.Ready = func() func() {
		defer func() {
			v := recover()
			go func() { panicked <- v }()
		}()
		_, err := s.Wait(s.ctx)
		t.Errorf("the exchange ends with %v", err)
		return nil
	}
	s.Resume = func() { t.Error("Resume is called") }
	var ok bool
	if s.Exchange, ok = p.Start(question(t, "held.test."), From{Tap: panickingTap{}}, &s.Waiter); !ok || !s.Park(s.ctx) {
		t.Fatal("the exchange is not parked")
	}
	close(release)
	if v := <-panicked; v != "boom" {
		t.Errorf("recovered %v", v)
	}
	if _, err := p.Exchange(t.Context(), question(t, "a.test."), false); err != nil {
		t.Errorf("the next exchange: %v", err)
	}
	if n := p.Stats(); n.InFlight != 0 || n.Servers[0].InFlight != 0 {
		t.Errorf("%d exchanges and %d queries are in flight", n.InFlight, n.Servers[0].InFlight)
	}
}
