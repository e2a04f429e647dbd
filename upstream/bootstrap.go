package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// minRefresh is how long the addresses of a name count at least, whatever their
	// TTL: half asks servers with a TTL of 0 all the time, double is felt when a
	// server moves.
	minRefresh = 5 * time.Second
	// maxRefresh is how long at most: TTLs of days are common, and servers move sooner.
	maxRefresh = time.Hour
	// firstRetry is how soon a name is looked up again after a failure, maxRetry how
	// rarely at last. At the start of a node the network takes some seconds: with half
	// of it they are spent asking, with double the agent is late. A resolver that has
	// been silent for long is back half of maxRetry sooner than anybody looks.
	firstRetry = 250 * time.Millisecond
	maxRetry   = 30 * time.Second
	// resolvConf names the servers that are asked where `resolver` is not set.
	resolvConf = "/etc/resolv.conf"
)

// watchName keeps the addresses of the i-th target, a name.
func (p *Pool) watchName(i int, t config.Target) {
	retry := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.stop.Done():
			return
		}
		addrs, fresh, err := p.lookup(t.Host, t.Port)
		if err != nil {
			if p.stop.Err() == nil {
				p.opts.Logger.Warn("the name of an upstream can't be looked up", "upstream", t.String(), "error", err, "again_in", retry)
			}
			timer.Reset(retry)
			retry = min(2*retry, maxRetry)
			continue
		}
		retry = firstRetry
		p.setAddrs(i, addrs)
		timer.Reset(min(max(fresh, minRefresh), maxRefresh))
	}
}

// errNoAddress: the name has neither kind of address.
var errNoAddress = errors.New("it has no address")

// lookup gives the addresses of host, IPv4 first, and how long they count. One kind of
// address is enough if the other one can't be had.
func (p *Pool) lookup(host string, port uint16) (addrs []netip.AddrPort, fresh time.Duration, err error) {
	resolvers, err := p.resolvers()
	if err != nil {
		return nil, 0, err
	}
	names := New(&config.Forward{
		From: wire.Root, To: resolvers, Policy: config.PolicySequential, ReadTimeout: p.cfg.ReadTimeout, Expire: minRefresh,
		SourceAddress: p.cfg.SourceAddress,
	}, Options{Deadline: p.opts.Deadline})
	defer func() { _ = names.Close() }() // never fails
	fresh = maxRefresh
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		list, ttl, failed := names.lookupType(p, host, qtype)
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

// resolvers are the servers that names are looked up at. Never the agent itself: it
// would ask the upstreams whose names they are.
func (p *Pool) resolvers() (to []config.Target, err error) {
	list := p.cfg.Resolver
	if len(list) == 0 {
		if list, err = config.Nameservers(resolvConf); err != nil {
			return nil, err
		}
	}
	for _, a := range list {
		if t := (config.Target{Addr: a}); (p.opts.Own == nil || !p.opts.Own(a)) && !slices.Contains(to, t) {
			to = append(to, t)
		}
	}
	if len(to) == 0 {
		return nil, fmt.Errorf("%s names no server but the agent itself; set `resolver`", resolvConf)
	}
	return to[:min(len(to), maxAddrs)], nil
}

// lookupType asks p for host's addresses of one kind, on behalf of another pool.
func (p *Pool) lookupType(whose *Pool, host string, qtype uint16) (list []netip.Addr, ttl time.Duration, err error) {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(host), qtype)
	packet, err := m.Pack()
	if err != nil {
		return nil, 0, err
	}
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		return nil, 0, fmt.Errorf("%q is not a name that can be asked for", host)
	}
	answer, err := p.Exchange(whose.stop, &q, false)
	switch {
	case err != nil:
		return nil, 0, err
	case answer.Rcode != wire.NoError:
		return nil, 0, fmt.Errorf("the resolver says %s", answer.Rcode)
	}
	var r wire.Reply
	r.Start(nil, &q)
	r.Pass(answer.Packed)
	reply, err := wire.Unpack(r.Finish(wire.MaxMessage))
	if err != nil {
		return nil, 0, err
	}
	for _, rr := range reply.Answer {
		if a := addrOf(rr); a.IsValid() && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list, time.Duration(answer.MinTTL) * time.Second, nil
}

// addrOf is the address that rr is about; not valid if it is about none.
func addrOf(rr dns.RR) (a netip.Addr) {
	switch rr := rr.(type) {
	case *dns.A:
		a, _ = netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		a, _ = netip.AddrFromSlice(rr.AAAA.To16())
	}
	return a
}
