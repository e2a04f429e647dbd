package resolver

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// maxPrivateNames is how many names an hour get a warning, and are remembered for that.
	maxPrivateNames = 64
	// privatePeriod is how long a name that has got a warning gets no other.
	privatePeriod = time.Hour
)

// PrivateAddress looks for addresses in the replies of upstreams that these have no reason to know: an attacker who controls a
// name can send its clients to the metadata service of the cloud, or to what listens on the node (DNS rebinding). It is safe for
// concurrent use.
type PrivateAddress struct {
	cfg config.PrivateAddress
	log *slog.Logger
	now func() time.Duration

	mu     sync.Mutex
	warned map[wire.Name]time.Duration // when the last warning about a name was
}

// NewPrivateAddress makes what cfg says; nil is the default. now is the time by package clock; nil is [clock.Now].
func NewPrivateAddress(cfg *config.PrivateAddress, log *slog.Logger, now func() time.Duration) *PrivateAddress {
	if cfg == nil {
		cfg = config.DefaultPrivateAddress()
	}
	if now == nil {
		now = clock.Now
	}
	return &PrivateAddress{cfg: *cfg, log: log, now: now, warned: make(map[wire.Name]time.Duration)}
}

// screen returns resp, the reply of p's server to q, or what replaces it. It is called once for each reply. The cluster's own
// DNS may answer with any address.
func (z *Zone) screen(p *upstream.Pool, q *wire.Query, resp wire.Response) wire.Response {
	a := z.PrivateAddress
	if a == nil || a.cfg.Action == config.PrivateOff || resp.Records == 0 || z.ClusterDNS != nil && z.ClusterDNS(p) {
		return resp
	}
	addr, found := a.find(q, resp.Packed, z.IsClusterIP)
	if !found {
		return resp
	}
	denies := a.cfg.Action != config.PrivateCount
	if name := wire.Name(q.Name()); a.isNew(name) {
		a.log.Warn("an upstream answers with a private address", "qname", name.String(), "address", addr.String(), "denied", denies)
	}
	if !denies {
		z.Stats.private[0].Add(1)
		return resp
	}
	z.Stats.private[1].Add(1)
	if a.cfg.Action == config.PrivateRefuse {
		return wire.ErrorResponse(q, wire.Refused).Explain(wire.EDEBlocked)
	}
	return wire.ErrorResponse(q, wire.NoError).Explain(wire.EDEBlocked)
}

// find returns an address in p, the reply to q, that is in the ranges. isClusterIP may be nil.
func (a *PrivateAddress) find(q *wire.Query, p wire.Packed, isClusterIP func(netip.Addr) bool) (found netip.Addr, ok bool) {
	p.EachAddress(func(addr netip.Addr) bool {
		ok = a.contains(addr) || a.cfg.ClusterIPs && isClusterIP != nil && isClusterIP(addr)
		found = addr
		return !ok
	})
	if ok && slices.ContainsFunc(a.cfg.Except, func(zone wire.Name) bool { return wire.Under(q.Name(), zone) }) {
		return netip.Addr{}, false
	}
	return found, ok
}

// contains reports whether addr, or the IPv4 address in it, is in the ranges.
func (a *PrivateAddress) contains(addr netip.Addr) bool {
	v4 := embedded4(addr)
	for _, r := range a.cfg.Ranges {
		if r.Contains(addr) || v4.IsValid() && r.Contains(v4) {
			return true
		}
	}
	return false
}

// embedded4 returns the IPv4 address that a host reaches by addr: an IPv4-mapped or IPv4-compatible address (RFC 4291, 2.5.5),
// or one behind the well-known prefix of NAT64 (RFC 6052, 2.1). It is not valid for others.
func embedded4(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.Addr{}
	}
	b := addr.As16()
	for _, prefix := range [...][12]byte{{10: 0xff, 11: 0xff}, {}, {0, 0x64, 0xff, 0x9b}} {
		if [12]byte(b[:12]) == prefix {
			return netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	return netip.Addr{}
}

// isNew reports whether name gets a warning, and remembers it. While too many names are remembered, others get none.
func (a *PrivateAddress) isNew(name wire.Name) bool {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, known := a.warned[name]; known && now-at < privatePeriod {
		return false
	}
	if len(a.warned) >= maxPrivateNames {
		maps.DeleteFunc(a.warned, func(_ wire.Name, at time.Duration) bool { return now-at >= privatePeriod })
	}
	if len(a.warned) >= maxPrivateNames {
		return false
	}
	a.warned[name] = now
	return true
}
