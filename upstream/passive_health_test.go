// Inside the package: the test reports events to a server directly.

package upstream

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestPassiveHealth follows one server through sequences of events: m is an unanswered
// query, a an answer, e a SERVFAIL, p the reply to a probe. A capital letter means that the
// server is suspect afterwards.
func TestPassiveHealth(t *testing.T) {
	for _, events := range []string{
		"aaa", "mma", "mmM", "mmMM", "mmMa", "mmMam", "mmMamm", "mmMammM",
		"mmMpM",   // reinstated, then suspect again
		"mmMpMPP", // then probes no longer count
		"mmMpMPa", // a reply does
		"mmMpMPammMp",
		"mmMpammM",
		"eeeeeeea", "eeeeeeeEEa", "eeeeeeeEPEa", "mmMe", "eeeeeeeEMMMEa", "eemmMea",
	} {
		var s passiveHealth
		for i, event := range events {
			switch event | 0x20 {
			case 'm':
				if s.recordUnanswered() {
					s.markSuspect()
				}
			case 'a':
				s.recordReply(wire.NXDomain, []byte(wire.Root), 1)
			case 'e':
				if s.recordReply(wire.ServFail, fmt.Appendf(nil, "\x03www\x03d%02d\x04test\x00", i), 1) {
					s.markSuspect()
				}
			case 'p':
				s.reinstate(1)
			}
			if want := event&0x20 == 0; s.suspected.Load() != want {
				t.Errorf("after %s of %s it is doubted: %t, want %t", events[:i+1], events, !want, want)
				break
			}
		}
	}
}

// TestHedgeBudget: no order of deposits and withdrawals exceeds the burst plus one in
// twenty.
func TestHedgeBudget(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := &newHedgeBudgets().hedgeBudget
		earned, spent := 0, 0
		for range 5000 {
			if random.IntN(1+int(seed%30)) > 0 {
				b.deposit()
				earned++
			} else if b.withdraw() {
				spent++
			}
			if spent > maxHedgeBurst+earned/queriesPerHedge {
				t.Fatalf("seed %d: %d spent after %d earned", seed, spent, earned)
			}
		}
	}
	b := &newHedgeBudgets().hedgeBudget
	for range maxHedgeBurst {
		if !b.withdraw() {
			t.Fatal("the burst is not there at the start")
		}
	}
	for i := range queriesPerHedge {
		if b.withdraw() {
			t.Fatalf("spent one after %d queries", i)
		}
		b.deposit()
	}
	if !b.withdraw() {
		t.Errorf("nothing to spend after %d queries", queriesPerHedge)
	}
}

func TestHedgeBudgetConcurrent(t *testing.T) {
	const each = 20000
	b := &newHedgeBudgets().hedgeBudget
	var spent atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range each {
				b.deposit()
				if b.withdraw() {
					spent.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n, most := spent.Load(), int64(maxHedgeBurst+8*each/queriesPerHedge); n > most || n < maxHedgeBurst {
		t.Errorf("%d were spent, want %d to %d", n, maxHedgeBurst, most)
	}
}

// TestErrorsOfNames: what a server says of names that nobody can resolve, or that it refuses, does not make it suspect, and never
// the only server.
func TestErrorsOfNames(t *testing.T) {
	many := func(format string) (names []string) {
		for i := range 3 * suspectAfterErrors {
			names = append(names, fmt.Sprintf(format, i))
		}
		return names
	}
	for name, tt := range map[string]struct {
		names   []string
		rcode   int
		servers int
		want    bool
	}{
		"single labels refused":    {many("host%d."), dns.RcodeRefused, 2, false},
		"names of one domain":      {many("n%d.broken.test."), dns.RcodeServerFailure, 2, false},
		"names of a local domain":  {many("printer%d.lan."), dns.RcodeRefused, 2, false},
		"names of several domains": {many("www.d%d.test."), dns.RcodeServerFailure, 2, true},
		"and only one server":      {many("www.d%d.test."), dns.RcodeServerFailure, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := longTimeout()
			cfg.Policy = config.PolicyFastest
			for range tt.servers {
				cfg.To = append(cfg.To, config.Target{Addr: startFake(t, answerRcode(tt.rcode)).addr})
			}
			var log bytes.Buffer
			p := New(cfg, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			for _, name := range tt.names {
				mustAnswer(t, p, name)
			}
			p.Close()
			if got := strings.Contains(log.String(), "suspect"); got != tt.want {
				t.Errorf("suspect: %t, want %t\n%s", got, tt.want, log.String())
			}
		})
	}
}

// TestRefusedCostsOneQuery: names that the only server refuses over UDP cost one query each and no connection, and do not make it suspect.
func TestRefusedCostsOneQuery(t *testing.T) {
	const names = 2 * suspectAfterErrors
	f := startFake(t, answerRcode(dns.RcodeRefused))
	cfg := longTimeout(f)
	cfg.MaxFails, cfg.Policy = 0, config.PolicyFastest
	p := newPool(t, cfg)
	for _, name := range numberedNames(names) {
		if r, err := p.ExchangeFrom(t.Context(), question(t, name), From{Client: 1}); err != nil || r.Rcode != wire.Refused {
			t.Errorf("%s: %s, %v", name, r.Rcode, err)
		}
	}
	for _, r := range f.requests() {
		if r.over != "udp" {
			t.Errorf("a query over %s", r.over)
		}
	}
	if n := len(f.requests()); n != names {
		t.Errorf("%d queries for %d names", n, names)
	}
	if p.servers()[0].suspected.Load() {
		t.Error("the server is suspect")
	}
}
