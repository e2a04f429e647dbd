package upstream

import (
	"cmp"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// remeasureAfter is the age at which the policy fastest measures an unused server again.
const remeasureAfter = 10 * time.Second

// defaultShadowInterval replaces a health interval of 0. It is CoreDNS's default.
const defaultShadowInterval = 500 * time.Millisecond

// sendShadows sends copies of x's query to servers that client queries avoid, to find out
// whether they have recovered: to suspect servers at the health interval and, under the
// policy fastest, to one that was not measured for a while, within the budget. No client
// waits for the replies. x must have asked its first server.
func (p *Pool) sendShadows(x *exchange, now time.Time) {
	at := p.timestamp(now)
	due := p.nextShadow.Load()
	if at < due || len(x.servers) < 2 || !p.nextShadow.CompareAndSwap(due, at+int64(cmp.Or(p.cfg.HealthInterval, defaultShadowInterval))) {
		return
	}
	for _, s := range x.servers {
		if s.suspected.Load() && p.shadowable(s, x) {
			p.startShadow(s, x, at)
		}
	}
	if p.order.policy != config.PolicyFastest {
		return
	}
	if s := p.leastRecentlyMeasured(x, at); s != nil && p.hedgeBudget.withdraw() {
		p.startShadow(s, x, at)
	}
}

// shadowable reports whether s is neither down nor being asked already.
func (p *Pool) shadowable(s *server, x *exchange) bool {
	return !p.down(s) && !s.shadowing.Load() && !x.outstandingAt(s)
}

// leastRecentlyMeasured returns the server with the oldest measurement; nil if all are
// recent.
func (p *Pool) leastRecentlyMeasured(x *exchange, at int64) (stalest *server) {
	oldest := at - int64(remeasureAfter)
	for _, s := range x.servers {
		_, times := s.transportFor(x.tcp)
		last := max(times.measuredAt.Load(), s.shadowedAt.Load())
		if (last == 0 || last <= oldest) && !s.suspected.Load() && p.shadowable(s, x) {
			stalest, oldest = s, last
		}
	}
	return stalest
}

// startShadow sends a copy of x's query to s.
func (p *Pool) startShadow(s *server, x *exchange, at int64) {
	if !s.shadowing.CompareAndSwap(false, true) {
		return
	}
	if !s.acquireSpare(share.NoClient, x.tcp, time.Now()) {
		s.shadowing.Store(false)
		return
	}
	s.shadowedAt.Store(at)
	q := newQuery()
	q.request, q.payload, q.tcp = x.request, uint16(p.opts.Payload), x.tcp
	q.build(true)
	q.request = nil // it belongs to the exchange
	p.tasks.Go(func() {
		defer s.shadowing.Store(false)
		p.runShadow(s, q)
	})
}

// runShadow waits for the reply to q and records the result.
func (p *Pool) runShadow(s *server, q *query) {
	via, times := s.transportFor(q.tcp)
	begun := time.Now()
	s.inFlight.Add(1)
	msg, err := roundTrip(p.stop, via, q, begun.Add(s.readTimeout))
	s.inFlight.Add(-1)
	s.gateFor(q.tcp).release(share.NoClient)
	now := time.Now()
	switch {
	case err == nil:
		rcode := wire.Rcode(msg[3] & rcodeBits)
		p.recordReply(s, rcode, q.message()[headerLen:], now)
		times.observe(now.Sub(begun), false, p.timestamp(now))
		s.durations.observe(rcode, now.Sub(begun))
	case p.stop.Err() != nil:
	case isUnreachable(err):
		p.suspect(s)
	case isLocal(err):
	default:
		p.recordUnanswered(s)
		p.startProbe(s)
	}
}
