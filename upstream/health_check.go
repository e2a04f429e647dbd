package upstream

import (
	"sync/atomic"
	"time"

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
