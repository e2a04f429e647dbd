// Inside the package: a test fills a histogram directly.

package upstream

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

func TestHistograms(t *testing.T) {
	d := newDurations()
	d.observe(wire.NoError, 250*time.Microsecond)
	d.observe(wire.NoError, 300*time.Microsecond)
	d.observe(wire.NXDomain, time.Hour)
	got := d.snapshot()
	if len(got) != 2 || got[wire.NoError].Count != 2 || got[wire.NXDomain].Count != 1 {
		t.Errorf("wrong histograms: %v", got)
	}
	count(t, got[wire.NoError].Buckets[0.00025], 1, "exchanges of at most 250 µs: 1: bounds are inclusive")
	count(t, got[wire.NXDomain].Buckets[8.192], 0, "exchanges of at most 8.192 s")
}

func TestStatsOfExchanges(t *testing.T) {
	f := startFake(t, func(r request) {
		if r.nth == 1 {
			r.reply(r.rcode(dns.RcodeNameError))
			return
		}
		answerOK(r)
	})
	p := newPool(t, forwardTo(f))
	for range 3 {
		mustAnswer(t, p, "example.org.")
	}
	s := p.Stats().Servers[0]
	if s.To != f.addr {
		t.Errorf("the server is %v, want %v", s.To, f.addr)
	}
	got := map[wire.Rcode]uint64{}
	for rcode, h := range s.Durations {
		got[rcode] = h.Count
		if h.Sum <= 0 {
			t.Errorf("the exchanges with rcode %d took %v s", rcode, h.Sum)
		}
	}
	equal(t, map[wire.Rcode]uint64{wire.NoError: 2, wire.NXDomain: 1}, got, "wrong counts")
}
