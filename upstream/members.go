package upstream

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
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

// members are the targets of a Pool, in the order of the directive, and the servers that
// they currently stand for.
type members struct {
	*base
	serverList atomic.Pointer[[]*server]

	mu   sync.Mutex
	list []member
	// ready is closed once there is a server; nil if a target is an address.
	ready chan struct{}
}

// initMembers adds the targets. Addresses become servers at once; names and Services are
// watched.
func (ms *members) initMembers(targets []config.Target) {
	ms.serverList.Store(new([]*server))
	for _, t := range targets {
		m := member{target: t}
		if m.fixed() {
			m.addrs = []netip.AddrPort{t.Addr}
		}
		ms.list = append(ms.list, m)
	}
	if !slices.ContainsFunc(ms.list, member.fixed) && len(targets) > 0 {
		ms.ready = make(chan struct{})
	}
	ms.mu.Lock()
	ms.rebuild()
	ms.mu.Unlock()
	for i, t := range targets {
		switch {
		case t.Service != "":
			ms.tasks.Go(func() { ms.watchService(i, t) })
		case t.Host != "":
			ms.tasks.Go(func() { ms.watchName(i, t) })
		}
	}
}

// servers returns the current servers. The caller must not modify the list.
func (ms *members) servers() []*server { return *ms.serverList.Load() }

// setAddrs sets the addresses of the i-th target. Servers that stay keep their connections
// and measurements; removed ones are closed once no exchange uses them.
func (ms *members) setAddrs(i int, addrs []netip.AddrPort) {
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool { return ms.excluded(i, a) })
	addrs = addrs[:min(len(addrs), maxAddrs)]
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.stop.Err() != nil || len(addrs) == 0 || slices.Equal(addrs, ms.list[i].addrs) {
		return // no addresses: the old ones may still work
	}
	ms.list[i].addrs = addrs
	ms.opts.Logger.Info("upstream addresses changed", "upstream", ms.list[i].target.String(), "addresses", len(addrs))
	for _, s := range ms.rebuild() {
		ms.tasks.Go(func() { ms.closeRemoved(s) })
	}
}

// excluded reports whether the i-th target must not be asked at a: a is the agent's own, or
// not of the address family of the source address.
func (ms *members) excluded(i int, a netip.AddrPort) bool {
	if source := ms.cfg.SourceAddress; source.IsValid() && source.Is4() != a.Addr().Is4() {
		return true
	}
	if ms.opts.Own == nil || !ms.opts.Own(a) {
		return false
	}
	ms.opts.Logger.Warn("ignored upstream address: it is the agent's own", "upstream", ms.list[i].target.String(), "address", a.String())
	return true
}

// close closes s, which takes no more queries, and releases the budget of its address.
func (ms *members) close(s *server) {
	s.close()
	s.closing.Do(func() { ms.opts.Budgets.close(s.budget, ms.cfg.MaxRate) })
}

// rebuild sets the list of servers from the members, and returns the removed servers. The
// caller holds the members' lock.
func (ms *members) rebuild() (gone []*server) {
	before := ms.servers()
	var list []*server
	for _, m := range ms.list {
		for _, to := range m.addrs {
			if !m.fixed() && findServer(list, to, m.target) != nil {
				continue
			}
			s := findServer(before, to, m.target)
			if s == nil || slices.Contains(list, s) {
				s = newServer(m.target, to, ms.cfg, ms.opts.Budgets.open(to, ms.cfg.MaxRate))
			}
			list = append(list, s)
		}
	}
	ms.serverList.Store(&list)
	if ms.ready != nil && len(list) > 0 && len(before) == 0 {
		close(ms.ready)
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
func (ms *members) closeRemoved(s *server) {
	close(s.removed)
	t := time.NewTimer(ms.opts.Deadline + removalGrace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ms.stop.Done():
	}
	ms.close(s)
}

// watchService keeps the addresses of the i-th target, a Service, up to date until the Pool
// closes.
func (ms *members) watchService(i int, t config.Target) {
	if ms.opts.Endpoints == nil {
		ms.opts.Logger.Error("upstream has no servers: no server block has a `kubernetes` directive", "upstream", t.String())
		return
	}
	for {
		addrs, changed := ms.opts.Endpoints(t.Service, t.Port)
		ms.setAddrs(i, addrs)
		select {
		case <-changed:
		case <-ms.stop.Done():
			return
		}
	}
}
