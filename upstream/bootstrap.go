package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/wire"
)

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
