package upstream

import (
	"cmp"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// staleAfter is how long the time of a server counts that nobody asks, to `fastest`.
// Half would ask more often than routes change, with double a server that has become
// fast again idles twice as long.
const staleAfter = 10 * time.Second

// scoutInterval is what is meant by a health interval of 0: CoreDNS's default.
const scoutInterval = 500 * time.Millisecond

// scouts sends a copy of r's query to servers that the clients' queries don't go to,
// to see whether they should again: one that is doubted, at the health interval, and,
// for `fastest`, one that was not measured for a while, within the budget. No client
// waits for a scout. r has been asked already.
func (p *Pool) scouts(r *race, now time.Time) {
	at := p.stamp(now)
	due := p.scoutsAt.Load()
	if at < due || len(r.servers) < 2 || !p.scoutsAt.CompareAndSwap(due, at+int64(cmp.Or(p.cfg.HealthInterval, scoutInterval))) {
		return
	}
	for _, s := range r.servers {
		if s.doubted.Load() && p.scoutable(s, r) {
			p.scout(s, r, at)
		}
	}
	if p.order.policy != config.PolicyFastest {
		return
	}
	if s := p.stalest(r, at); s != nil && p.budget.spend() {
		p.scout(s, r, at)
	}
}

// scoutable reports whether a scout to s would tell more than is under way anyway.
func (p *Pool) scoutable(s *server, r *race) bool {
	return !p.down(s) && !s.scouting.Load() && !r.has(s)
}

// stalest is the server that was measured the longest time ago; nil if that is not long.
func (p *Pool) stalest(r *race, at int64) (stalest *server) {
	oldest := at - int64(staleAfter)
	for _, s := range r.servers {
		_, times := s.route(r.tcp)
		last := max(times.last.Load(), s.scouted.Load())
		if (last == 0 || last <= oldest) && !s.doubted.Load() && p.scoutable(s, r) {
			stalest, oldest = s, last
		}
	}
	return stalest
}

// scout sends a copy of r's query to s.
func (p *Pool) scout(s *server, r *race, at int64) {
	if !s.scouting.CompareAndSwap(false, true) {
		return
	}
	s.scouted.Store(at)
	c := newCall()
	c.query, c.payload, c.tcp = r.query, uint16(p.opts.Payload), r.tcp
	c.build(true)
	c.query = nil // it is the race's
	p.tasks.Go(func() {
		defer s.scouting.Store(false)
		p.reconnoitre(s, c)
	})
}

// reconnoitre waits for what comes of the scout c.
func (p *Pool) reconnoitre(s *server, c *call) {
	via, times := s.route(c.tcp)
	begun := time.Now()
	s.flying.Add(1)
	msg, err := fly(p.stop, via, c, begun.Add(s.readTimeout))
	s.flying.Add(-1)
	now := time.Now()
	switch {
	case err == nil:
		rcode := wire.Rcode(msg[3] & rcodeBits)
		p.answers(s, rcode, now)
		times.observe(now.Sub(begun), false, p.stamp(now))
		s.durations.observe(rcode, now.Sub(begun))
	case p.stop.Err() != nil:
	case unreachable(err):
		p.doubt(s)
	case local(err):
	default:
		p.miss(s)
		p.suspect(s)
	}
}
