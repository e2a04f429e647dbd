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

// patient is a directive whose queries end with replies and not with time.
func patient(to ...*fake) *config.Forward {
	cfg := directive(to...)
	cfg.ReadTimeout = 20 * time.Second
	cfg.HealthInterval = time.Hour
	return cfg
}

// mustExchange asks for the i-th name.
func mustExchange(t *testing.T, p *Pool, i int) wire.Response {
	t.Helper()
	r, err := p.Exchange(t.Context(), question(t, fmt.Sprintf("n%d.test.", i)), false)
	if err != nil {
		t.Errorf("query %d: %v", i, err)
	}
	return r
}

// TestFrozen freezes one of two servers among queries. None of them may fail, and few
// may be asked of the one that is frozen: those in a row that show it, those that the
// budget allows when the other one is late, and scouts.
func TestFrozen(t *testing.T) {
	const before, after = 50, 400
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			a, b := startFake(t, answers), startFake(t, answers)
			cfg := patient(a, b)
			cfg.Policy, cfg.MaxFails = policy, 0 // the queries alone show it
			p := lively(t, cfg)
			for i := range before {
				mustExchange(t, p, i)
			}
			frozen := a
			if policy == config.PolicyFastest && asked(b) > asked(a) {
				frozen = b
			}
			known := asked(frozen)
			frozen.become(silence)
			for i := range after {
				mustExchange(t, p, before+i)
			}
			if n, most := asked(frozen)-known, suspectAfterUnanswered+1+maxHedgeBurst+(before+after)/queriesPerHedge; n > most {
				t.Errorf("%d of %d queries were asked of the server that is frozen, want %d at most", n, after, most)
			}
			if n := flyingUDP(p); n != 0 {
				t.Errorf("%d queries are in flight after all have ended", n)
			}
			for _, s := range p.servers() {
				eventually(t, "no scout is under way", func() bool { return !s.shadowing.Load() || s.addr == frozen.addr })
			}
		})
	}
}

// flyingUDP counts what is in flight over UDP, scouts not counted.
func flyingUDP(p *Pool) (n int) {
	for _, s := range p.servers() {
		n += s.udp.(*udpTransport).inFlightCount()
		if s.shadowing.Load() {
			n--
		}
	}
	return n
}

// TestDeadFromTheStart is the same without anything known before, with many queries at
// once, and in both ways of being dead.
func TestDeadFromTheStart(t *testing.T) {
	for name, policy := range policies {
		for _, way := range []string{"silent", "refused"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				dead, alive := startFake(t, silence), startFake(t, answers)
				if way == "refused" {
					dead.udp.Close()
				}
				cfg := patient(dead, alive)
				cfg.Policy, cfg.MaxFails = policy, 0 // the queries alone show it
				p := lively(t, cfg)
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						for j := range 50 {
							mustExchange(t, p, 50*i+j)
						}
					})
				}
				wg.Wait()
				if n, most := asked(dead), 8+suspectAfterUnanswered+1+maxHedgeBurst+400/queriesPerHedge; n > most {
					t.Errorf("%d of 400 queries were asked of the server that is dead, want %d at most", n, most)
				}
			})
		}
	}
}

// TestComesBack holds that a doubted server is tried by scouts alone, without probes,
// and that it gets the queries again when it answers one.
func TestComesBack(t *testing.T) {
	a, b := startFake(t, silence), startFake(t, answers)
	cfg := patient(a, b)
	cfg.MaxFails, cfg.ReadTimeout, cfg.HealthInterval = 0, time.Second, time.Millisecond
	p := lively(t, cfg)
	n := 0
	again := func() {
		n++
		mustExchange(t, p, n)
	}
	eventually(t, "it is doubted", func() bool { again(); return p.Stats().Servers[0].Suspected })
	a.become(answers)
	eventually(t, "it is trusted", func() bool { again(); return !p.Stats().Servers[0].Suspected })
	eventually(t, "it is asked first", func() bool {
		before := asked(b)
		again()
		return asked(b) == before
	})
	if len(a.requests()) != asked(a) {
		t.Error("it was probed with max_fails 0")
	}
	if p.Stats().Servers[0].SuspectedTotal == 0 {
		t.Error("no doubt is counted")
	}
}

// TestBackForProbesOnly: a server that answers nothing but probes gets no query but
// those that show it.
func TestBackForProbesOnly(t *testing.T) {
	a := startFake(t, func(r request) {
		if r.Question[0].Name == "." {
			answers(r)
		}
	})
	b := startFake(t, answers)
	cfg := patient(a, b)
	cfg.HealthInterval = time.Millisecond
	p := lively(t, cfg)
	fooled := func() bool { return p.servers()[0].probeUnreliable.Load() && p.servers()[0].suspected.Load() }
	n := 0
	eventually(t, "probes are seen through", func() bool { n++; mustExchange(t, p, n); return fooled() })
	before := asked(a)
	for i := range 100 {
		mustExchange(t, p, n+i)
	}
	if n, most := asked(a)-before, 1+maxHedgeBurst+(n+100)/queriesPerHedge; n > most {
		t.Errorf("it was asked %d of 100 queries, want %d at most", n, most)
	}
}

// TestFirstAnswerWins: the answer is that of the server that was asked second, and the
// first one's, which comes later, is no stray.
func TestFirstAnswerWins(t *testing.T) {
	release := make(chan struct{})
	var late sync.WaitGroup
	late.Add(1)
	var first atomic.Bool
	a := startFake(t, func(r request) {
		if r.Question[0].Name == "." || !first.CompareAndSwap(false, true) {
			answers(r)
			return
		}
		go func() {
			defer late.Done()
			<-release
			r.reply(r.answer(1))
		}()
	})
	b := startFake(t, func(r request) { r.reply(r.answer(2)) })
	p := lively(t, patient(a, b))
	if got := mustExchange(t, p, 0); got.Answers != 2 {
		t.Errorf("the answer has %d records, want those of the second server", got.Answers)
	}
	close(release)
	late.Wait()
	mustExchange(t, p, 1) // what waits on the socket was read by then
	st := p.Stats().Servers
	if st[0].UnexpectedReplies != 0 || st[1].Hedges != 1 || st[1].HedgeWins != 1 || st[0].Hedges != 0 {
		t.Errorf("strays %d, hedges %d and %d, wins %d; want 0, 0 and 1, 1", st[0].UnexpectedReplies, st[0].Hedges, st[1].Hedges, st[1].HedgeWins)
	}
}

// TestErrorIsHeldBack: the second server's SERVFAIL is not the answer while the first
// one may have a better one; if none comes, it is.
func TestErrorIsHeldBack(t *testing.T) {
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
		p := lively(t, patient(a, b))
		// The second server's error is held for as long as it is waited for.
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
				answers(r)
			}
		}()
		got := mustExchange(t, p, 0)
		if want := map[bool]wire.Rcode{false: wire.NoError, true: wire.ServFail}[silent]; got.Rcode != want {
			t.Errorf("the first one silent: %t; the answer is %s, want %s", silent, got.Rcode, want)
		}
	}
}

// TestLostPacket: the only server is asked a second time, out of another port, long
// before the read timeout.
func TestLostPacket(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.nth > 1 {
			answers(r)
		}
	})
	p := lively(t, patient(f))
	mustExchange(t, p, 0)
	got := f.requests()
	if len(got) != 2 || got[0].from == got[1].from || got[0].Id == got[1].Id {
		t.Errorf("%d queries were sent; want two, with another ID and out of another port", len(got))
	}
	if s := p.Stats().Servers[0]; s.Suspected || s.Hedges != 1 {
		t.Errorf("doubted: %t, hedges: %d", s.Suspected, s.Hedges)
	}
}

// TestRelief holds when a second server is asked: in place of one that is doubted always,
// if it is not doubted itself; else as long as the budget lasts.
func TestRelief(t *testing.T) {
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
		a, b := startFake(t, silence), startFake(t, silence)
		p := lively(t, patient(a, b))
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

// TestAllSilent: with nobody to turn to, extra queries stay within the budget.
func TestAllSilent(t *testing.T) {
	a, b := startFake(t, silence), startFake(t, silence)
	cfg := patient(a, b)
	cfg.MaxFails, cfg.ReadTimeout = 0, 300*time.Millisecond
	p := lively(t, cfg)
	const n = 200
	for _, s := range p.servers() { // as after the first of them
		s.suspected.Store(true)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			q := question(t, fmt.Sprintf("n%d.test.", i))
			if _, err := p.Exchange(t.Context(), q, false); !errors.Is(err, ErrTimeout) {
				t.Errorf("query %d: %v, want ErrTimeout", i, err)
			}
		})
	}
	wg.Wait()
	hedges := 0
	for _, s := range p.Stats().Servers {
		hedges += int(s.Hedges)
	}
	if most := maxHedgeBurst + n/queriesPerHedge; hedges > most {
		t.Errorf("%d extra queries for %d, want %d at most", hedges, n, most)
	}
}

// TestBusyIsNoFault: a server to which too many queries are on their way is asked no
// more, and nothing is held against it.
func TestBusyIsNoFault(t *testing.T) {
	arrived := make(chan request, 8)
	f := startFake(t, func(r request) { arrived <- r })
	p := start(t, patient(f))
	p.servers()[0].udp.close()
	p.servers()[0].udp = newUDPTransport(f.addr, udpOptions{maxInFlight: 1, expire: time.Hour}, new(atomic.Uint64))
	var wg sync.WaitGroup
	wg.Go(func() { mustExchange(t, p, 0) })
	r := <-arrived
	if _, err := p.Exchange(t.Context(), question(t, "b.test."), false); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrBusy) {
		t.Errorf("the second query: %v, want ErrBusy", err)
	}
	answers(r)
	wg.Wait()
	if s := p.servers()[0]; s.unanswered.Load() != 0 || s.probing.Load() || s.probeFailures.Load() != 0 {
		t.Errorf("%d misses, probing: %t, %d failed probes", s.unanswered.Load(), s.probing.Load(), s.probeFailures.Load())
	}
}

// TestRescue: a query that a frozen server has had for long is asked elsewhere even if
// the budget is spent.
func TestRescue(t *testing.T) {
	cfg := directive(startFake(t, silence), startFake(t, answers))
	cfg.Policy, cfg.ReadTimeout, cfg.MaxFails = config.PolicySequential, time.Hour, 0
	p := lively(t, cfg)
	p.hedgeBudget.credit.Store(-1 << 40)
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
		t.Errorf("with another server at hand: %v", err)
	}
}
