package upstream

import (
	"cmp"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// remeasureAfter is how long the time of a server counts that nobody asks, to `fastest`.
// Half would ask more often than routes change, with double a server that has become
// fast again idles twice as long.
const remeasureAfter = 10 * time.Second

// defaultShadowInterval is what is meant by a health interval of 0: CoreDNS's default.
const defaultShadowInterval = 500 * time.Millisecond

// sendShadows sends a copy of r's query to servers that the clients' queries don't go to,
// to see whether they should again: one that is doubted, at the health interval, and,
// for `fastest`, one that was not measured for a while, within the budget. No client
// waits for a scout. r has been asked already.
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

// shadowable reports whether a scout to s would tell more than is under way anyway.
func (p *Pool) shadowable(s *server, x *exchange) bool {
	return !p.down(s) && !s.shadowing.Load() && !x.outstandingAt(s)
}

// leastRecentlyMeasured is the server that was measured the longest time ago; nil if that is not long.
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

// startShadow sends a copy of r's query to s.
func (p *Pool) startShadow(s *server, x *exchange, at int64) {
	if !s.shadowing.CompareAndSwap(false, true) {
		return
	}
	s.shadowedAt.Store(at)
	q := newQuery()
	q.request, q.payload, q.tcp = x.request, uint16(p.opts.Payload), x.tcp
	q.build(true)
	q.request = nil // it is the race's
	p.tasks.Go(func() {
		defer s.shadowing.Store(false)
		p.runShadow(s, q)
	})
}

// runShadow waits for what comes of the scout c.
func (p *Pool) runShadow(s *server, q *query) {
	via, times := s.transportFor(q.tcp)
	begun := time.Now()
	s.inFlight.Add(1)
	msg, err := roundTrip(p.stop, via, q, begun.Add(s.readTimeout))
	s.inFlight.Add(-1)
	now := time.Now()
	switch {
	case err == nil:
		rcode := wire.Rcode(msg[3] & rcodeBits)
		p.recordReply(s, rcode, now)
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
