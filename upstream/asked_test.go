// Inside the package: it uses the fakes of the other tests.

package upstream

import (
	"sync/atomic"
	"testing"
)

// TestAsked: an exchange says which server has answered, and whether another one was late.
func TestAsked(t *testing.T) {
	late, alive := startFake(t, ignore), startFake(t, answerOK)
	cfg := longTimeout(late, alive)
	cfg.Policy, cfg.MaxFails = policies["sequential"], 0
	p := newHedgingPool(t, cfg)
	ask := func(name string) *Asked {
		t.Helper()
		var asked atomic.Pointer[Asked]
		if _, err := p.ExchangeFrom(t.Context(), question(t, name), From{Asked: &asked}); err != nil {
			t.Fatal(err)
		}
		return asked.Load()
	}
	if a := ask("a.test."); a == nil || a.Server != alive.addr || !a.Hedged || !a.HedgeWon {
		t.Errorf("of a late server and another: %+v", a)
	}
	late.setScript(answerOK)
	eventually(t, "the server answers without another", func() bool {
		a := ask("b.test.")
		return a.Server == late.addr && !a.Hedged && !a.HedgeWon
	})
	p.Close()
	var asked atomic.Pointer[Asked]
	if _, err := p.ExchangeFrom(t.Context(), question(t, "c.test."), From{Asked: &asked}); err == nil {
		t.Error("a closed pool answers")
	}
}
