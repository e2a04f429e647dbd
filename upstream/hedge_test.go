// Inside the package: the tests set round-trip times, suspicion and the budget of hedges.

package upstream

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

var policies = map[string]config.Policy{
	"fastest": config.PolicyFastest, "random": config.PolicyRandom, "round_robin": config.PolicyRoundRobin, "sequential": config.PolicySequential,
}

// longTimeout returns a directive whose queries end by replies rather than timeouts.
func longTimeout(to ...*fake) *config.Forward {
	cfg := forwardTo(to...)
	cfg.ReadTimeout = 20 * time.Second
	cfg.HealthInterval = time.Hour
	return cfg
}

// mustExchange sends a query for the i-th name and requires an answer.
func mustExchange(t *testing.T, p *Pool, i int) wire.Response {
	t.Helper()
	r, err := p.Exchange(t.Context(), question(t, fmt.Sprintf("n%d.test.", i)), false)
	if err != nil {
		t.Errorf("query %d: %v", i, err)
	}
	return r
}

// TestFrozenServer freezes one of two servers while queries are sent. None may fail, and
// the frozen server gets few: those that make it suspect, hedges within the budget, and
// shadow queries.
func TestFrozenServer(t *testing.T) {
	const before, after = 50, 400
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			a, b := startFake(t, answerOK), startFake(t, answerOK)
			cfg := longTimeout(a, b)
			cfg.Policy, cfg.MaxFails = policy, 0 // no probes: queries alone must detect it
			p := newHedgingPool(t, cfg)
			for i := range before {
				mustExchange(t, p, i)
			}
			frozen := a
			if policy == config.PolicyFastest && queriesReceived(b) > queriesReceived(a) {
				frozen = b
			}
			known := queriesReceived(frozen)
			frozen.setScript(ignore)
			for i := range after {
				mustExchange(t, p, before+i)
			}
			if n, most := queriesReceived(frozen)-known, suspectAfterUnanswered+1+maxHedgeBurst+(before+after)/queriesPerHedge; n > most {
				t.Errorf("%d of %d queries were asked of the server that is frozen, want %d at most", n, after, most)
			}
			count(t, inFlightUDP(p), 0, "queries are in flight after all have ended")
			for _, s := range p.Stats().Servers {
				// The other server may be the fastest by then.
				if s.To == frozen.addr && s.Unanswered == 0 && policy != config.PolicyFastest {
					t.Error("the frozen server has left no query unanswered")
				}
			}
			for _, s := range p.servers() {
				eventually(t, "no scout is under way", func() bool { return !s.shadowing.Load() || s.addr == frozen.addr })
			}
		})
	}
}

// inFlightUDP counts the queries in flight over UDP, shadow queries excluded.
func inFlightUDP(p *Pool) (n int) {
	for _, s := range p.servers() {
		n += s.udp.(*udpTransport).inFlightCount()
		if s.shadowing.Load() {
			n--
		}
	}
	return n
}

// TestDownFromStart is TestFrozenServer without measurements, with many queries at once,
// for a silent and a refusing server.
func TestDownFromStart(t *testing.T) {
	for name, policy := range policies {
		for _, way := range []string{"silent", "refused"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				dead, alive := startFake(t, ignore), startFake(t, answerOK)
				if way == "refused" {
					dead.server.Close()
				}
				cfg := longTimeout(dead, alive)
				cfg.Policy, cfg.MaxFails = policy, 0 // no probes: queries alone must detect it
				p := newHedgingPool(t, cfg)
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						for j := range 50 {
							mustExchange(t, p, 50*i+j)
						}
					})
				}
				wg.Wait()
				if n, most := queriesReceived(dead), 8+suspectAfterUnanswered+1+maxHedgeBurst+400/queriesPerHedge; n > most {
					t.Errorf("%d of 400 queries were asked of the server that is dead, want %d at most", n, most)
				}
			})
		}
	}
}

// TestRecovery: without probes, shadow queries find out that a suspect server has
// recovered, and it gets queries again.
func TestRecovery(t *testing.T) {
	a, b := startFake(t, ignore), startFake(t, answerOK)
	cfg := longTimeout(a, b)
	cfg.MaxFails, cfg.ReadTimeout, cfg.HealthInterval = 0, time.Second, time.Millisecond
	p := newHedgingPool(t, cfg)
	n := 0
	again := func() {
		n++
		mustExchange(t, p, n)
	}
	eventually(t, "it is doubted", func() bool { again(); return p.Stats().Servers[0].Suspected })
	a.setScript(answerOK)
	eventually(t, "it is trusted", func() bool { again(); return !p.Stats().Servers[0].Suspected })
	eventually(t, "it is asked first", func() bool {
		before := queriesReceived(b)
		again()
		return queriesReceived(b) == before
	})
	if len(a.requests()) != queriesReceived(a) {
		t.Error("it was probed with max_fails 0")
	}
	if p.Stats().Servers[0].SuspectedTotal == 0 {
		t.Error("no doubt is counted")
	}
}

// TestAnswersProbesOnly: a server that answers nothing but probes only gets the queries
// that make it suspect.
func TestAnswersProbesOnly(t *testing.T) {
	a := startFake(t, func(r request) {
		if r.Question[0].Name == "." {
			answerOK(r)
		}
	})
	b := startFake(t, answerOK)
	cfg := longTimeout(a, b)
	cfg.HealthInterval = time.Millisecond
	p := newHedgingPool(t, cfg)
	fooled := func() bool { return p.servers()[0].probeUnreliable.Load() && p.servers()[0].suspected.Load() }
	n := 0
	eventually(t, "probes are seen through", func() bool { n++; mustExchange(t, p, n); return fooled() })
	before := queriesReceived(a)
	for i := range 100 {
		mustExchange(t, p, n+i)
	}
	if n, most := queriesReceived(a)-before, 1+maxHedgeBurst+(n+100)/queriesPerHedge; n > most {
		t.Errorf("it was asked %d of 100 queries, want %d at most", n, most)
	}
}

// TestFirstAnswerWins: the answer is that of the server asked second, and the first one's
// late reply does not count as unexpected.
func TestFirstAnswerWins(t *testing.T) {
	release := make(chan struct{})
	var late sync.WaitGroup
	late.Add(1)
	var first atomic.Bool
	a := startFake(t, func(r request) {
		if r.Question[0].Name == "." || !first.CompareAndSwap(false, true) {
			answerOK(r)
			return
		}
		go func() {
			defer late.Done()
			<-release
			r.reply(r.answer(1))
		}()
	})
	b := startFake(t, func(r request) { r.reply(r.answer(2)) })
	p := newHedgingPool(t, longTimeout(a, b))
	var hedged atomic.Bool
	got, err := p.ExchangeFrom(t.Context(), question(t, "n0.test."), From{Hedged: &hedged})
	if err != nil || got.Answers != 2 || !hedged.Load() {
		t.Errorf("the answer has %d records, want those of the second server; hedged: %t, %v", got.Answers, hedged.Load(), err)
	}
	close(release)
	late.Wait()
	mustExchange(t, p, 1) // by then the late reply has been read
	st := p.Stats().Servers
	if st[0].UnexpectedReplies != 0 || st[1].Hedges != 1 || st[1].HedgeWins != 1 || st[0].Hedges != 0 {
		t.Errorf("strays %d, hedges %d and %d, wins %d; want 0, 0 and 1, 1", st[0].UnexpectedReplies, st[0].Hedges, st[1].Hedges, st[1].HedgeWins)
	}
}

// TestErrorRcodeIsFallback: the second server's SERVFAIL is not the answer while the first
// one may have a better one; if none arrives, it is.
func TestErrorRcodeIsFallback(t *testing.T) {
	for _, silent := range []bool{false, true} {
		arrived, said := make(chan request, 4), make(chan struct{}, 4)
		a := startFake(t, func(r request) {
			if r.Question[0].Name != "." {
				arrived <- r
			}
		})
		b := startFake(t, func(r request) {
			r.reply(r.rcode(dns.RcodeServerFailure))
			said <- struct{}{}
		})
		p := newHedgingPool(t, longTimeout(a, b))
		// The fallback is kept as long as the second server would be waited for.
		for range minSamples {
			p.servers()[0].udpRTT.observe(2*time.Second, false, 1)
			p.servers()[1].udpRTT.observe(2*time.Second, false, 1)
		}
		p.servers()[0].udpRTT.p95.Store(int64(time.Millisecond))
		if silent {
			p.servers()[1].udpRTT.p95.Store(int64(time.Millisecond))
		}
		go func() {
			r := <-arrived
			<-said
			if !silent {
				eventually(t, "the error has been read", func() bool { return p.servers()[1].lastReply.Load() > 0 })
				answerOK(r)
			}
		}()
		got := mustExchange(t, p, 0)
		if want := map[bool]wire.Rcode{false: wire.NoError, true: wire.ServFail}[silent]; got.Rcode != want {
			t.Errorf("the first one silent: %t; the answer is %s, want %s", silent, got.Rcode, want)
		}
	}
}

// TestLostPacket: a single server is asked again, from another port, long before the read
// timeout.
func TestLostPacket(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.nth > 1 {
			answerOK(r)
		}
	})
	p := newHedgingPool(t, longTimeout(f))
	mustExchange(t, p, 0)
	got := f.requests()
	if len(got) != 2 || got[0].from == got[1].from || got[0].Id == got[1].Id {
		t.Errorf("%d queries were sent; want two, with another ID and out of another port", len(got))
	}
	if s := p.Stats().Servers[0]; s.Suspected || s.Hedges != 1 {
		t.Errorf("doubted: %t, hedges: %d", s.Suspected, s.Hedges)
	}
}

// TestHedgeAllowed: moving from a suspect to a trusted server is always allowed; other
// hedges need budget.
func TestHedgeAllowed(t *testing.T) {
	for _, tt := range []struct{ doubted, other, funds, want, spent bool }{
		{false, false, true, true, true},
		{false, false, false, false, false},
		{true, false, true, true, false},
		{true, false, false, true, false},
		{true, true, true, true, true},
		{true, true, false, false, false},
		{false, true, true, true, true},
		{false, true, false, false, false},
	} {
		a, b := startFake(t, ignore), startFake(t, ignore)
		p := newHedgingPool(t, longTimeout(a, b))
		p.servers()[0].suspected.Store(tt.doubted)
		p.servers()[1].suspected.Store(tt.other)
		p.hedgeBudget.credit.Store(0)
		if tt.funds {
			p.hedgeBudget.credit.Store(queriesPerHedge)
		}
		x := newExchange(p)
		now := time.Now()
		x.failuresLeft, x.hedgesLeft = 4, 3
		x.request, x.servers, x.deadline, x.order = question(t, "a.test."), p.servers(), now.Add(time.Hour), []int{0, 1}
		x.askNext(now)
		got := x.hedge(x.queries[0], now)
		spent := tt.funds && p.hedgeBudget.credit.Load() == 0
		if got != tt.want || spent != tt.spent || x.inFlight != 1+int(p.Stats().Servers[1].Hedges) {
			t.Errorf("%+v: asked another one: %t, spent: %t, in flight: %d", tt, got, spent, x.inFlight)
		}
		x.reset()
	}
}

// TestAllSilent: with all servers silent, hedges stay within the budget, as long as no query
// has waited so long that it is hedged regardless of it.
func TestAllSilent(t *testing.T) {
	a, b := startFake(t, ignore), startFake(t, ignore)
	cfg := longTimeout(a, b)
	cfg.MaxFails = 0
	p := newHedgingPool(t, cfg)
	for _, s := range p.servers() { // as after the first queries
		s.suspected.Store(true)
	}
	const n = 200
	hedges, forced := 0, 0
	for range n {
		p.hedgeBudget.deposit() // as Exchange does
		x := newExchange(p)
		now := time.Now()
		x.failuresLeft, x.hedgesLeft = 4, 3
		x.request, x.servers, x.deadline, x.order = question(t, "a.test."), p.servers(), now.Add(time.Hour), []int{0, 1}
		x.askNext(now)
		started := x.queries[0].attempt.started
		if x.hedge(x.queries[0], started.Add(forceHedgeAfter-1)) {
			hedges++
		} else if x.hedge(x.queries[0], started.Add(forceHedgeAfter)) {
			forced++
		}
		x.reset()
	}
	if most := maxHedgeBurst + n/queriesPerHedge; hedges == 0 || hedges > most {
		t.Errorf("%d extra queries for %d, want 1 to %d", hedges, n, most)
	}
	if hedges+forced != n {
		t.Errorf("%d queries are hedged in the end, want all %d", hedges+forced, n)
	}
}

// TestSilentTimeouts: with all servers silent, concurrent queries all time out.
func TestSilentTimeouts(t *testing.T) {
	cfg := longTimeout(startFake(t, ignore), startFake(t, ignore))
	cfg.MaxFails, cfg.ReadTimeout = 0, 300*time.Millisecond
	p := newHedgingPool(t, cfg)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			q := question(t, fmt.Sprintf("n%d.test.", i))
			if _, err := p.Exchange(t.Context(), q, false); !errors.Is(err, ErrTimeout) {
				t.Errorf("query %d: %v, want ErrTimeout", i, err)
			}
		})
	}
	wg.Wait()
	if s := p.Stats().Servers; s[0].Unanswered+s[1].Unanswered < 200 {
		t.Errorf("%d and %d queries are counted that got no reply, want 200 or more", s[0].Unanswered, s[1].Unanswered)
	}
}

// TestBusyIsNotUnanswered: a server with too many queries in flight gets no more of them,
// and does not become suspect.
func TestBusyIsNotUnanswered(t *testing.T) {
	arrived := make(chan request, 8)
	f := startFake(t, func(r request) { arrived <- r })
	p := newPool(t, longTimeout(f))
	p.servers()[0].udp.close()
	p.servers()[0].udp = newUDPTransport(f.addr, udpOptions{maxInFlight: 1, expire: time.Hour}, new(atomic.Uint64))
	var wg sync.WaitGroup
	wg.Go(func() { mustExchange(t, p, 0) })
	r := <-arrived
	if _, err := p.Exchange(t.Context(), question(t, "b.test."), false); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrBusy) {
		t.Errorf("the second query: %v, want ErrBusy", err)
	}
	answerOK(r)
	wg.Wait()
	count(t, p.Stats().Servers[0].Unanswered, 0, "queries are counted that got no reply")
	if s := p.servers()[0]; s.unanswered.Load() != 0 || s.probing.Load() || s.probeFailures.Load() != 0 {
		t.Errorf("%d misses, probing: %t, %d failed probes", s.unanswered.Load(), s.probing.Load(), s.probeFailures.Load())
	}
}

// TestForcedHedge: a query that has waited long for a frozen server is hedged even without
// budget.
func TestForcedHedge(t *testing.T) {
	cfg := forwardTo(startFake(t, ignore), startFake(t, answerOK))
	cfg.Policy, cfg.ReadTimeout, cfg.MaxFails = config.PolicySequential, time.Hour, 0
	p := newHedgingPool(t, cfg)
	p.hedgeBudget.credit.Store(-1 << 40)
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
		t.Errorf("with another server at hand: %v", err)
	}
}
