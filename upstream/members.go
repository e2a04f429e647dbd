package upstream

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

const (
	// maxAddrs bounds the servers of one name or Service, as `forward` bounds its targets.
	maxAddrs = 15
	// removalGrace is how long a removed server keeps its connections beyond the deadline
	// of exchanges that may use it.
	removalGrace = time.Second
)

// member is a target with its current addresses.
type member struct {
	target config.Target
	addrs  []netip.AddrPort
}

// fixed reports whether the target is an address.
func (m member) fixed() bool { return m.target.Addr.IsValid() }

// members are the targets of a Pool, in the order of the directive.
type members struct {
	mu   sync.Mutex
	list []member
	// ready is closed once there is a server; nil if a target is an address.
	ready chan struct{}
}

// initMembers adds the targets. Addresses become servers at once; names and Services are
// watched.
func (p *Pool) initMembers(targets []config.Target) {
	p.serverList.Store(new([]*server))
	for _, t := range targets {
		m := member{target: t}
		if m.fixed() {
			m.addrs = []netip.AddrPort{t.Addr}
		}
		p.members.list = append(p.members.list, m)
	}
	if !slices.ContainsFunc(p.members.list, member.fixed) && len(targets) > 0 {
		p.members.ready = make(chan struct{})
	}
	p.members.mu.Lock()
	p.rebuild()
	p.members.mu.Unlock()
	for i, t := range targets {
		switch {
		case t.Service != "":
			p.tasks.Go(func() { p.watchService(i, t) })
		case t.Host != "":
			p.tasks.Go(func() { p.watchName(i, t) })
		}
	}
}

// setAddrs sets the addresses of the i-th target. Servers that stay keep their connections
// and measurements; removed ones are closed once no exchange uses them.
func (p *Pool) setAddrs(i int, addrs []netip.AddrPort) {
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool { return p.excluded(i, a) })
	addrs = addrs[:min(len(addrs), maxAddrs)]
	p.members.mu.Lock()
	defer p.members.mu.Unlock()
	if p.stop.Err() != nil || len(addrs) == 0 || slices.Equal(addrs, p.members.list[i].addrs) {
		return // no addresses: the old ones may still work
	}
	p.members.list[i].addrs = addrs
	p.opts.Logger.Info("upstream addresses changed", "upstream", p.members.list[i].target.String(), "addresses", len(addrs))
	for _, s := range p.rebuild() {
		p.tasks.Go(func() { p.closeRemoved(s) })
	}
}

// excluded reports whether the i-th target must not be asked at a: a is the agent's own, or
// not of the address family of the source address.
func (p *Pool) excluded(i int, a netip.AddrPort) bool {
	if source := p.cfg.SourceAddress; source.IsValid() && source.Is4() != a.Addr().Is4() {
		return true
	}
	if p.opts.Own == nil || !p.opts.Own(a) {
		return false
	}
	p.opts.Logger.Warn("ignored upstream address: it is the agent's own", "upstream", p.members.list[i].target.String(), "address", a.String())
	return true
}

// rebuild sets the list of servers from the members, and returns the removed servers. The
// caller holds the members' lock.
func (p *Pool) rebuild() (gone []*server) {
	before := p.servers()
	var list []*server
	for _, m := range p.members.list {
		for _, to := range m.addrs {
			if !m.fixed() && findServer(list, to, m.target) != nil {
				continue
			}
			s := findServer(before, to, m.target)
			if s == nil || slices.Contains(list, s) {
				s = newServer(m.target, to, p.cfg)
			}
			list = append(list, s)
		}
	}
	p.serverList.Store(&list)
	if p.members.ready != nil && len(list) > 0 && len(before) == 0 {
		close(p.members.ready)
	}
	return slices.DeleteFunc(slices.Clone(before), func(s *server) bool { return slices.Contains(list, s) })
}

// findServer returns the server in the list for target t at address to; nil if there is
// none.
func findServer(in []*server, to netip.AddrPort, t config.Target) *server {
	same := func(s *server) bool {
		u := s.target
		u.Addr, u.Service, u.Port = t.Addr, t.Service, t.Port // ignore where the address comes from
		return s.addr == to && u == t
	}
	if i := slices.IndexFunc(in, same); i >= 0 {
		return in[i]
	}
	return nil
}

// closeRemoved closes s, which was removed from the list, after the exchanges that may use
// it.
func (p *Pool) closeRemoved(s *server) {
	close(s.removed)
	t := time.NewTimer(p.opts.Deadline + removalGrace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.stop.Done():
	}
	s.close()
}

// watchService keeps the addresses of the i-th target, a Service, up to date until the Pool
// closes.
func (p *Pool) watchService(i int, t config.Target) {
	if p.opts.Endpoints == nil {
		p.opts.Logger.Error("upstream has no servers: no server block has a `kubernetes` directive", "upstream", t.String())
		return
	}
	for {
		addrs, changed := p.opts.Endpoints(t.Service, t.Port)
		p.setAddrs(i, addrs)
		select {
		case <-changed:
		case <-p.stop.Done():
			return
		}
	}
}
