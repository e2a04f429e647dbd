package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/wire"
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

const (
	// minRefresh is how long the addresses of a name are used at least, whatever their TTL.
	minRefresh = 5 * time.Second
	// maxRefresh is how long they are used at most: TTLs of days are common.
	maxRefresh = time.Hour
	// firstRetry is the delay before the first retry of a failed lookup; it doubles up to
	// maxRetry. While a node starts, its network takes some seconds.
	firstRetry = 250 * time.Millisecond
	maxRetry   = 30 * time.Second
	// resolvConf lists the servers to use without `resolver`.
	resolvConf = "/etc/resolv.conf"
)

// lookupOutage are the log messages while the name of an upstream can't be resolved.
var lookupOutage = outage.Messages{
	Start:   "upstream name lookup failed",
	Ongoing: "upstream name lookup still failing",
	End:     "upstream name lookup works again",
}

// watchName keeps the addresses of the i-th target, a name, up to date until the Pool
// closes.
func (ms *members) watchName(i int, t config.Target) {
	retry := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	outages := outage.Log{Messages: lookupOutage, Logger: ms.opts.Logger.With("upstream", t.String()), Level: slog.LevelWarn}
	defer outages.Stop()
	for {
		select {
		case <-timer.C:
		case <-ms.stop.Done():
			return
		}
		addrs, fresh, err := ms.lookup(t.Host, t.Port)
		if err != nil {
			if ms.stop.Err() == nil {
				outages.Fail(err)
			}
			timer.Reset(retry)
			retry = min(2*retry, maxRetry)
			continue
		}
		retry = firstRetry
		outages.Recover()
		ms.setAddrs(i, addrs)
		timer.Reset(min(max(fresh, minRefresh), maxRefresh))
	}
}

// errNoAddress: the name has neither A nor AAAA records.
var errNoAddress = errors.New("it has no A or AAAA records")

// lookup returns the addresses of host, IPv4 first, and how long they are valid. If only
// one of the two lookups succeeds, its addresses suffice.
func (ms *members) lookup(host string, port uint16) (addrs []netip.AddrPort, fresh time.Duration, err error) {
	resolvers, err := ms.resolvers()
	if err != nil {
		return nil, 0, err
	}
	names := New(&config.Forward{
		From: wire.Root, To: resolvers, Policy: config.PolicySequential, ReadTimeout: ms.cfg.ReadTimeout, Expire: minRefresh,
		SourceAddress: ms.cfg.SourceAddress,
	}, Options{Deadline: ms.opts.Deadline})
	defer func() { _ = names.Close() }() // never fails
	fresh = maxRefresh
	for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
		list, ttl, failed := lookupType(ms.stop, names, host, qtype)
		if failed != nil {
			err = failed
			continue
		}
		for _, a := range list {
			addrs = append(addrs, netip.AddrPortFrom(a, port))
		}
		if len(list) > 0 {
			fresh = min(fresh, ttl)
		}
	}
	switch {
	case len(addrs) > 0:
		return addrs, fresh, nil
	case err != nil:
		return nil, 0, err
	}
	return nil, 0, errNoAddress
}

// resolvers returns the servers used to look up names. The agent's own addresses are
// excluded: it would need the upstreams that are being looked up.
func (ms *members) resolvers() (to []config.Target, err error) {
	list := ms.cfg.Resolver
	if len(list) == 0 {
		if list, err = config.Nameservers(resolvConf); err != nil {
			return nil, err
		}
	}
	for _, a := range list {
		if t := (config.Target{Addr: a}); (ms.opts.Own == nil || !ms.opts.Own(a)) && !slices.Contains(to, t) {
			to = append(to, t)
		}
	}
	if len(to) == 0 {
		return nil, fmt.Errorf("%s lists no server except the agent itself; set `resolver`", resolvConf)
	}
	return to[:min(len(to), maxAddrs)], nil
}

// lookupType asks resolvers for host's addresses of one type.
func lookupType(ctx context.Context, resolvers *Pool, host string, qtype uint16) (list []netip.Addr, ttl time.Duration, err error) {
	name, err := wire.ParseName(host)
	if err != nil {
		return nil, 0, err
	}
	var q wire.Query
	if q.Parse(wire.AppendQuery(nil, 0, []byte(name), qtype, nil, wire.SafeUDP)) != wire.Serve {
		return nil, 0, fmt.Errorf("%q is not a valid name", host)
	}
	answer, err := resolvers.Exchange(ctx, &q, false)
	switch {
	case err != nil:
		return nil, 0, err
	case answer.Rcode != wire.NoError:
		return nil, 0, fmt.Errorf("the resolver answered %s", answer.Rcode)
	}
	var r wire.Reply
	r.Start(nil, &q)
	r.CopyRaw(answer.Packed)
	return r.Addrs(), time.Duration(answer.MinTTL) * time.Second, nil
}
