// Inside the package: the transports are simulated, and the tests compare with limits of the package.

package upstream

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// awayUntil returns what makes a simulated server refuse queries for a time from now on.
func awayUntil(d time.Duration) func(time.Time) bool {
	end := time.Now().Add(d)
	return func(now time.Time) bool { return now.Before(end) }
}

// askFor makes an exchange for a client, and returns how long it took.
func askFor(t *testing.T, p *Pool, c share.Client) (took time.Duration, err error) {
	start := time.Now()
	_, err = p.ExchangeFrom(context.Background(), question(t, "www.example.org."), From{Client: c, Addr: clientAddr(c)})
	return time.Since(start), err
}

// TestRestart: queries wait for servers that restart, with one and with several, and each pool asks again seldom however many
// queries wait.
func TestRestart(t *testing.T) {
	for name, servers := range map[string][]string{"one": {"192.0.2.1:53"}, "three": {"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const away, clients = time.Second, 500
				var via []*simulated
				for range servers {
					s := newSimulated(time.Millisecond)
					s.refuse = awayUntil(away)
					via = append(via, s)
				}
				p := newSimulatedPool(simulatedTo(config.MaxRate{}, servers...), Options{}, via...)
				defer p.Close()
				var all sync.WaitGroup
				for i := range clients {
					all.Go(func() {
						took, err := askFor(t, p, share.Client(1+i%4))
						if most := away + maxPause + 10*time.Millisecond; err != nil || took > most {
							t.Errorf("query %d: %v after %v", i, err, took)
						}
					})
				}
				all.Wait()
				again := 0
				for _, s := range via {
					again += s.countBetween(time.Time{}.Add(1), time.Now()) - clients
				}
				if most := len(via)*int(away/firstPause+1) + clients; again > most {
					t.Errorf("%d queries were sent again, want %d at most", again, most)
				}
			})
		})
	}
}

// TestRestartAlone: a single query that meets a restart is answered soon after its end, at any time of it.
func TestRestartAlone(t *testing.T) {
	for _, away := range []time.Duration{10 * time.Millisecond, 60 * time.Millisecond, 900 * time.Millisecond, 1990 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulated(time.Millisecond)
			s.refuse = awayUntil(away)
			p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
			defer p.Close()
			if took, err := askFor(t, p, 1); err != nil || took > away+maxPause+10*time.Millisecond {
				t.Errorf("away for %v: %v after %v", away, err, took)
			}
			if n := len(s.queries()); n > 2+maxLaterRounds {
				t.Errorf("%d queries were sent", n)
			}
		})
	}
}

// TestRestartBesideReplies: a server that replies to other queries right before and after it goes away is away nevertheless.
func TestRestartBesideReplies(t *testing.T) {
	for name, tt := range map[string]struct {
		failure error
		away    time.Duration
	}{
		"refused": {syscall.ECONNREFUSED, time.Second},
		"closed":  {io.EOF, 3 * firstPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulated(time.Millisecond)
				p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
				defer p.Close()
				away := awayUntil(tt.away)
				s.failure, s.refuse = tt.failure, func(now time.Time) bool {
					p.servers()[0].lastReply.Store(p.timestamp(now))
					return away(now)
				}
				if took, err := askFor(t, p, 1); err != nil || took > tt.away+maxPause+10*time.Millisecond {
					t.Errorf("%v after %v", err, took)
				}
				if n := len(s.queries()); n > maxLaterRounds {
					t.Errorf("%d queries were sent", n)
				}
			})
		})
	}
}

// TestAbsence: who waits for servers that can't be reached, and for how long. The error is no failure of the name.
func TestAbsence(t *testing.T) {
	for name, tt := range map[string]struct {
		from   From
		option func(*config.Forward)
		before time.Duration // how long before another client was the first to ask, and every second since
		waits  time.Duration
		sent   int // at most
	}{
		"a client":             {From{Client: 1}, nil, 0, 2 * time.Second, maxLaterRounds},
		"a short read_timeout": {From{Client: 1}, func(f *config.Forward) { f.ReadTimeout = 300 * time.Millisecond }, 0, 300 * time.Millisecond, 5},
		"a long read_timeout":  {From{Client: 1}, func(f *config.Forward) { f.ReadTimeout = time.Minute }, 0, DefaultDeadline, maxLaterRounds + 1},
		"an expired answer":    {From{Client: 1, NoWait: true}, nil, 0, 0, 2},
		"background work":      {From{}, nil, 0, 0, 2},
		"max_connect_attempts": {From{Client: 1}, func(f *config.Forward) { f.MaxConnectAttempts = 3 }, 0, 3 * firstPause, 3},
		"a long outage":        {From{Client: 1}, nil, maxAbsence, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulated(time.Millisecond)
				s.refuse = func(time.Time) bool { return true }
				cfg := simulatedTo(config.MaxRate{}, "192.0.2.1:53")
				if tt.option != nil {
					tt.option(cfg)
				}
				p := newSimulatedPool(cfg, Options{}, s)
				defer p.Close()
				for end := time.Now().Add(tt.before); time.Now().Before(end); time.Sleep(time.Second) {
					_, _ = p.ExchangeFrom(context.Background(), question(t, "other.test."), From{Client: 2, NoWait: true})
				}
				start, before := time.Now(), len(s.queries())
				_, err := p.ExchangeFrom(context.Background(), question(t, "example.org."), tt.from)
				if took := time.Since(start); took < tt.waits || took > tt.waits+10*time.Millisecond {
					t.Errorf("it took %v, want %v", took, tt.waits)
				}
				if !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrFailed) || errors.Is(err, ErrLocal) {
					t.Errorf("error %v", err)
				}
				if n := len(s.queries()) - before; n > tt.sent {
					t.Errorf("%d queries were sent, want %d at most", n, tt.sent)
				}
				count(t, len(p.absence.waiting), 0, "exchanges still wait")
			})
		})
	}
}

// TestAbsenceFailfast: with failfast_all_unhealthy_upstreams nobody waits once all servers are down.
func TestAbsenceFailfast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(time.Millisecond)
		s.refuse = func(time.Time) bool { return true }
		cfg := simulatedTo(config.MaxRate{}, "192.0.2.1:53")
		cfg.MaxFails, cfg.FailfastAllUnhealthy, cfg.HealthInterval = 1, true, time.Hour
		p := newSimulatedPool(cfg, Options{}, s)
		defer p.Close()
		p.servers()[0].probing.Store(true) // no probe over the network
		p.servers()[0].consecutiveProbeFailures.Store(9)
		if took, err := askFor(t, p, 1); !errors.Is(err, ErrNoUpstream) || took > 0 {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestAbsenceEnds: the reply to one query lets the others go on at once, whichever of them was to ask next.
func TestAbsenceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(time.Millisecond)
		s.refuse = awayUntil(700 * time.Millisecond)
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
		defer p.Close()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if took, err := askFor(t, p, 1); err != nil || took > 710*time.Millisecond+firstPause {
					t.Errorf("%v after %v", err, took)
				}
			})
		}
		time.Sleep(701 * time.Millisecond)
		if took, err := askFor(t, p, 2); err != nil || took > 2*time.Millisecond {
			t.Errorf("the new query: %v after %v", err, took)
		}
		all.Wait()
	})
}

// TestAbsenceClose: a query that waits for its next round ends when the pool closes, and when its client goes.
func TestAbsenceClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated(time.Millisecond)
		s.refuse = func(time.Time) bool { return true }
		p := newSimulatedPool(simulatedTo(config.MaxRate{}, "192.0.2.1:53"), Options{}, s)
		ctx, cancel := context.WithTimeout(context.Background(), 120*time.Millisecond)
		defer cancel()
		if _, err := p.ExchangeFrom(ctx, question(t, "example.org."), From{Client: 1}); err == nil {
			t.Error("an answer from nobody")
		}
		time.AfterFunc(100*time.Millisecond, func() { p.Close() })
		_, err := askFor(t, p, 1)
		mustBe(t, "a query that waits", err, ErrClosed)
	})
}

// TestNameThatClosesConnections: a query on which a server closes the connection, although it answers others, does not wait.
func TestNameThatClosesConnections(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.Question[0].Name == "evil.test." {
			r.conn.Close()
			return
		}
		answerOK(r)
	})
	cfg := longTimeout(f)
	cfg.ForceTCP, cfg.MaxFails = true, 0
	p := newPool(t, cfg)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = p.ExchangeFrom(t.Context(), question(t, "good.test."), From{Client: 2})
			}
		}
	})
	_, err := p.ExchangeFrom(t.Context(), question(t, "evil.test."), From{Client: 1})
	close(stop)
	others.Wait()
	if err == nil {
		t.Error("an answer for a name that has none")
	}
	if answer, err := p.ExchangeFrom(t.Context(), question(t, "good.test."), From{Client: 1}); err != nil || answer.Rcode != wire.NoError {
		t.Errorf("afterwards: %s, %v", answer.Rcode, err)
	}
}

// TestQueryLostInRestart: a query that the server has got just before it restarts is sent again when it is back, even if all
// repetitions meanwhile were refused.
func TestQueryLostInRestart(t *testing.T) {
	for name, servers := range map[string][]string{"one": {"192.0.2.1:53"}, "two": {"192.0.2.1:53", "192.0.2.2:53"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var via []*simulated
				for range servers {
					via = append(via, newSimulated(2*time.Millisecond))
				}
				p := newSimulatedPool(simulatedTo(config.MaxRate{}, servers...), Options{}, via...)
				defer p.Close()
				for range 20 {
					if _, err := askFor(t, p, 1); err != nil {
						t.Fatal(err)
					}
				}
				away := awayUntil(time.Second)
				for i, s := range p.servers() {
					via[i].lose = func(now time.Time) bool {
						s.lastReply.Store(p.timestamp(now.Add(900 * time.Millisecond))) // it still finishes what it had begun
						return via[i].refuse == nil
					}
					s.tcp.(*simulated).refuse = away
				}
				time.AfterFunc(time.Millisecond, func() {
					for _, s := range via {
						s.mu.Lock()
						s.refuse = away
						s.mu.Unlock()
					}
				})
				if took, err := askFor(t, p, 1); err != nil || took > time.Second+2*maxPause {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}
