package upstream

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// healthMonitor probes the servers of a Pool and judges them by the replies to clients'
// queries. It is safe for concurrent use.
type healthMonitor struct {
	*base
	members *members
	// nextShadow is when the next shadow queries are due, as a timestamp of the pool.
	nextShadow atomic.Int64
}

// down reports whether s has failed more than max_fails probes in a row.
func (m *healthMonitor) down(s *server) bool {
	return m.cfg.MaxFails > 0 && s.consecutiveProbeFailures.Load() > uint32(m.cfg.MaxFails)
}

// startProbe starts probing s unless that is in progress. The caller must have an exchange
// in flight, so that Close does not wait for the tasks yet.
func (m *healthMonitor) startProbe(s *server) {
	if m.cfg.MaxFails > 0 && s.probing.CompareAndSwap(false, true) {
		m.tasks.Go(func() { m.probeLoop(s) })
	}
}

// probeLoop probes s at once and then at the health interval, until s replies or is
// removed, or the Pool closes.
func (m *healthMonitor) probeLoop(s *server) {
	defer s.probing.Store(false)
	q := newQuery()
	q.probe = true
	t := time.NewTicker(max(m.cfg.HealthInterval, time.Millisecond))
	defer t.Stop()
	for {
		if m.mayProbe(s) {
			err := m.probeOnce(s, q)
			if m.stop.Err() != nil {
				return
			}
			if err == nil {
				m.markAlive(s)
				return
			}
			m.recordProbeFailure(s, err)
		}
		select {
		case <-t.C:
		case <-s.removed:
			return
		case <-m.stop.Done():
			return
		}
	}
}

// mayProbe reports whether the budget of s allows a probe. A probe that is left out is neither a success nor a
// failure.
func (m *healthMonitor) mayProbe(s *server) bool {
	u := forProbe
	if m.down(s) {
		u = forDown
	}
	return s.budget.try(u, time.Now())
}

// recordProbeFailure records that s did not reply to a probe because of err.
func (m *healthMonitor) recordProbeFailure(s *server, err error) {
	s.probeFailures.Add(1)
	if s.markSuspect() {
		s.suspectedCount.Add(1)
	}
	if s.consecutiveProbeFailures.Add(1) == uint32(m.cfg.MaxFails)+1 {
		m.opts.Logger.Warn("upstream is down", "to", s.label, "failed_probes", m.cfg.MaxFails+1, "err", err)
	}
}

// markAlive records the reply to a probe of s.
func (m *healthMonitor) markAlive(s *server) {
	s.reinstate(m.timestamp(time.Now()))
	m.absence.end()
	if was := s.consecutiveProbeFailures.Swap(0); was > uint32(m.cfg.MaxFails) {
		m.opts.Logger.Info("upstream answers again", "to", s.label)
	}
	m.nextShadow.Store(0)
}

// probeOnce sends one probe: an NS query for the root or the configured domain, without
// EDNS.
func (m *healthMonitor) probeOnce(s *server, q *query) error {
	domain := m.cfg.HealthDomain
	if domain == "" {
		domain = wire.Root
	}
	b := wire.AppendQuery(append(q.frame[:0], 0, 0), q.newID(), []byte(domain), wire.TypeNS, nil, DefaultPayload)
	if m.cfg.HealthNoRec {
		b[2+2] &^= rdBit
	}
	q.setFrame(stripOPT(b))
	_, err := roundTrip(m.stop, s.probes, q, time.Now().Add(m.opts.ProbeTimeout))
	return err
}

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
	q.build(true, s)
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
