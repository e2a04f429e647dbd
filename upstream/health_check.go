package upstream

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// down reports whether s has failed more than max_fails probes in a row.
func (p *Pool) down(s *server) bool {
	return p.cfg.MaxFails > 0 && s.consecutiveProbeFailures.Load() > uint32(p.cfg.MaxFails)
}

// startProbe starts probing s unless that is in progress. The caller must have an exchange
// in flight, so that Close does not wait for the tasks yet.
func (p *Pool) startProbe(s *server) {
	if p.cfg.MaxFails > 0 && s.probing.CompareAndSwap(false, true) {
		p.tasks.Go(func() { p.probeLoop(s) })
	}
}

// probeLoop probes s at once and then at the health interval, until s replies or is
// removed, or the Pool closes.
func (p *Pool) probeLoop(s *server) {
	defer s.probing.Store(false)
	q := newQuery()
	q.probe = true
	t := time.NewTicker(max(p.cfg.HealthInterval, time.Millisecond))
	defer t.Stop()
	for {
		err := p.probeOnce(s, q)
		if p.stop.Err() != nil {
			return
		}
		if err == nil {
			p.markAlive(s)
			return
		}
		s.probeFailures.Add(1)
		if s.markSuspect() {
			s.suspectedCount.Add(1)
		}
		if s.consecutiveProbeFailures.Add(1) == uint32(p.cfg.MaxFails)+1 {
			p.opts.Logger.Warn("upstream is down", "to", s.label, "failed_probes", p.cfg.MaxFails+1, "err", err)
		}
		select {
		case <-t.C:
		case <-s.removed:
			return
		case <-p.stop.Done():
			return
		}
	}
}

// markAlive records the reply to a probe of s.
func (p *Pool) markAlive(s *server) {
	s.reinstate(p.timestamp(time.Now()))
	if was := s.consecutiveProbeFailures.Swap(0); was > uint32(p.cfg.MaxFails) {
		p.opts.Logger.Info("upstream answers again", "to", s.label)
	}
	p.nextShadow.Store(0)
}

// probeOnce sends one probe: an NS query for the root or the configured domain, without
// EDNS.
func (p *Pool) probeOnce(s *server, q *query) error {
	domain := p.cfg.HealthDomain
	if domain == "" {
		domain = wire.Root
	}
	b := wire.AppendQuery(append(q.frame[:0], 0, 0), q.newID(), []byte(domain), wire.TypeNS, nil, DefaultPayload)
	if p.cfg.HealthNoRec {
		b[2+2] &^= rdBit
	}
	q.setFrame(stripOPT(b))
	_, err := roundTrip(p.stop, s.probes, q, time.Now().Add(p.opts.ProbeTimeout))
	return err
}
