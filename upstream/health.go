package upstream

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// down reports whether s has failed more probes in a row than max_fails.
func (p *Pool) down(s *server) bool {
	return p.cfg.MaxFails > 0 && s.fails.Load() > uint32(p.cfg.MaxFails)
}

// suspect starts probing s, unless that is under way already. It is called from
// within the gate, so that Close can't be waiting for the tasks yet.
func (p *Pool) suspect(s *server) {
	if p.cfg.MaxFails > 0 && s.probing.CompareAndSwap(false, true) {
		p.tasks.Go(func() { p.probe(s) })
	}
}

// probe asks s at the health interval, and at once, until it replies or the Pool
// closes.
func (p *Pool) probe(s *server) {
	defer s.probing.Store(false)
	c := newCall()
	c.probe = true
	t := time.NewTicker(max(p.cfg.HealthInterval, time.Millisecond))
	defer t.Stop()
	for {
		err := p.probeOnce(s, c)
		if p.stop.Err() != nil {
			return
		}
		if err == nil {
			p.alive(s)
			return
		}
		s.failures.Add(1)
		if s.doubt() {
			s.doubts.Add(1)
		}
		if s.fails.Add(1) == uint32(p.cfg.MaxFails)+1 {
			p.opts.Logger.Warn("upstream is down", "to", s.name, "failed_probes", p.cfg.MaxFails+1, "error", err)
		}
		select {
		case <-t.C:
		case <-s.gone:
			return
		case <-p.stop.Done():
			return
		}
	}
}

// alive notes the reply to a probe of s.
func (p *Pool) alive(s *server) {
	s.pardon(p.stamp(time.Now()))
	if was := s.fails.Swap(0); was > uint32(p.cfg.MaxFails) {
		p.opts.Logger.Info("upstream answers again", "to", s.name)
	}
	p.scoutsAt.Store(0)
}

// probeOnce sends one probe: the name servers of the root or of the configured
// domain, without EDNS, so that it is the plainest query there is.
func (p *Pool) probeOnce(s *server, c *call) error {
	domain := p.cfg.HealthDomain
	if domain == "" {
		domain = wire.Root
	}
	b := wire.AppendQuery(append(c.frame[:0], 0, 0), c.id(), []byte(domain), wire.TypeNS, nil, DefaultPayload)
	if p.cfg.HealthNoRec {
		b[2+2] &^= rdBit
	}
	c.seal(stripOPT(b))
	_, err := fly(p.stop, s.probes, c, time.Now().Add(p.opts.ProbeTimeout))
	return err
}
