package resolver

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/expression"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/upstream"
)

// Routes are the zones of one listening address. They are immutable once they are served; a
// reload makes new ones.
type Routes struct {
	// StartWaiting makes every client's query begin as one that may wait, on a worker. Only
	// tests set it, before the routes are served, to see that it makes no difference.
	StartWaiting bool
	// Clients counts the queries by client. It is set before the routes are served; nil counts
	// none. Search are the search domains of the node, below which names that don't exist may
	// come from a search path.
	Clients *clients.Table
	Search  []wire.Name
	// Owners says whose addresses are, for logs; it may be nil. Tail gets the finished queries for
	// `nodens tail`; nil: there is none. Both are set before the routes are served.
	Owners *clients.Table
	Tail   *tail.Feed
	// OnNode reports whether an address is the node's or that of a pod on it. It is set before the routes are served, and is safe
	// for concurrent use; nil: only loopback and link-local addresses are.
	OnNode func(netip.Addr) bool
	// PodLabel returns the value of a label of the pod with that address and UID, "" for none. It is set
	// before the routes are served; nil: there are none.
	PodLabel func(addr netip.Addr, uid, key string) string

	zones map[wire.Name]*Zone // the first of each name
	all   []*Zone
	depth int // labels of the longest zone
	// classes is set if a zone answers other classes than IN, or has rewrite rules for them.
	classes bool
	// views is set if a zone has a view, so that the answer depends on the client.
	views bool
	// tracing is set if a zone has Tracing.
	tracing bool
	// aclClasses are of the clients that ACLs treat alike; nil: there are no ACLs, or too many.
	aclClasses *clientClasses
	// pods says which clients are pods without an IPv6 address; nil: no zone depends on that.
	pods *podrange.Ranges
	// search is the directive that looks at the clients' namespaces, if there is exactly one.
	search *Autopath
	// policies are those of [Routes.BindPolicies].
	policies *dnspolicy.Table
	// acls is set if a zone has an ACL.
	acls bool
	// rpz is set if a zone has response policy zones.
	rpz bool
	// dropped counts the queries that no zone takes.
	dropped *Zone
}

// NewRoutes makes the routes of zones, which must not belong to other routes. Of several zones
// with one name, the first whose view matches takes a query. dropped counts the queries that
// no zone takes.
func NewRoutes(zones []*Zone, dropped *Stats) *Routes {
	rt := &Routes{zones: make(map[wire.Name]*Zone, len(zones)), all: zones, dropped: &Zone{Stats: dropped}}
	for _, z := range slices.Backward(zones) {
		z.next = rt.zones[z.Name]
		if z.Cluster != nil {
			z.origins = z.Cluster.Origins()
		}
		rt.zones[z.Name] = z
		rt.depth = max(rt.depth, z.Name.Labels())
		rt.views = rt.views || z.View != nil
		rt.tracing = rt.tracing || z.Tracing != nil
		rt.classes = rt.classes || z.Chaos != nil || z.Rewrite.RewritesClass()
	}
	rt.aclClasses, rt.search, rt.pods = newClientClasses(zones), onlySearch(zones), podsOf(zones)
	rt.linkLists()
	return rt
}

// linkLists finds out which lists the zones have, and leads the zones to rt if answers are to be judged by them.
func (rt *Routes) linkLists() {
	rt.acls = slices.ContainsFunc(rt.all, func(z *Zone) bool { return z.ACL != nil })
	rt.rpz = slices.ContainsFunc(rt.all, func(z *Zone) bool { return z.RPZ != nil })
	if rt.views || rt.acls || rt.rpz {
		for _, z := range rt.all {
			z.lists = rt
		}
	}
}

// onlySearch returns the directive of zones that looks at the clients' namespaces, nil if there is none or more than one.
func onlySearch(zones []*Zone) (only *Autopath) {
	for _, z := range zones {
		switch s := z.Autopath; {
		case s == nil || s.clientNamespace == nil || s == only:
		case only != nil:
			return nil
		default:
			only = s
		}
	}
	return only
}

// Zones returns all zones in the order of NewRoutes.
func (rt *Routes) Zones() iter.Seq[*Zone] { return slices.Values(rt.all) }

// Dropped returns the counters of the queries that no zone takes.
func (rt *Routes) Dropped() *Stats { return rt.dropped.Stats }

// zoneFor returns the zone that answers r, or nil and the rcode of the error.
func (rt *Routes) zoneFor(r *Request) (*Zone, wire.Rcode) {
	if r.Query.Class != wire.ClassIN && !rt.classes {
		return nil, wire.Refused
	}
	if r.Query.EDNS && r.Query.Version != 0 {
		return nil, wire.BadVers
	}
	z := rt.match(r)
	if z != nil && z.OnlySetup {
		return nil, wire.Refused
	}
	return z, wire.Refused
}

// upstreams returns the first pool that takes q's name, nil for none.
func (z *Zone) upstreams(q *wire.Query) *upstream.Pool {
	for _, p := range z.Forward {
		if p.Covers(q.Name()) {
			return p
		}
	}
	return nil
}

// onNode reports whether packets to addr stay on the node: to an address of the node or of its pods. Link-local addresses are
// not forwarded (RFC 3927, 2.7; RFC 4291, 2.5.6).
func (rt *Routes) onNode(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || rt.OnNode != nil && rt.OnNode(addr)
}

// zone returns the zone with this name whose view takes r, nil for none.
func (rt *Routes) zone(name []byte, r *Request) *Zone {
	z := rt.zones[wire.Name(name)]
	if z != nil && z.View != nil {
		return z.firstMatching(r)
	}
	return z
}

// match returns the longest zone of the qname whose view takes r. A DS record is in the zone
// above its owner name (RFC 4035, 3.1.4.1), so for DS the zone of that name comes last, but
// before the root.
func (rt *Routes) match(r *Request) *Zone {
	name := r.Query.Name()
	for range r.Query.Labels() - rt.depth {
		name = name[1+name[0]:] // longer than any zone
	}
	return rt.longest(name, len(r.Query.Name()), r.Query.Type, r)
}

// longest is match for the last labels of a name of that size, and another type.
func (rt *Routes) longest(name []byte, size int, qtype uint16, r *Request) (found *Zone) {
	for ; len(name) > 1; name = name[1+name[0]:] {
		if z := rt.zone(name, r); z != nil {
			if qtype != wire.TypeDS || len(name) < size {
				return z
			}
			found = z
		}
	}
	if found != nil {
		return found
	}
	return rt.zone(name, r)
}

// View decides which queries a zone takes. It is immutable and safe for concurrent use.
type View struct {
	name string
	when []*expression.Expression
	addr netip.AddrPort
}

// NewView makes the view of cfg for queries that arrive at addr.
func NewView(cfg *config.View, addr netip.AddrPort) *View {
	return &View{name: cfg.Name, when: cfg.When, addr: addr}
}

// Name returns the view's name, "" for a nil View.
func (v *View) Name() string {
	if v == nil {
		return ""
	}
	return v.name
}

// matches reports whether all expressions of the view of z are true for r.
func (v *View) matches(r *Request, z *Zone) bool {
	f := viewEnv{r: r, zone: z, server: v.addr}
	for _, e := range v.when {
		if !e.Eval(&f) {
			return false
		}
	}
	return true
}

// firstMatching returns the first of z and the zones after it whose view matches r, nil for
// none.
func (z *Zone) firstMatching(r *Request) *Zone {
	for ; z != nil; z = z.next {
		if z.View == nil || z.View.matches(r, z) {
			return z
		}
	}
	return nil
}

// viewEnv is the environment of expressions about a request. It makes strings on demand, so
// only zones with views pay for them.
type viewEnv struct {
	r      *Request
	zone   *Zone
	server netip.AddrPort
}

func (f *viewEnv) Type() string  { return wire.TypeName(f.r.Query.Type) }
func (f *viewEnv) Name() string  { return wire.Name(f.r.Query.Name()).String() }
func (f *viewEnv) Class() string { return wire.ClassName(f.r.Query.Class) }
func (f *viewEnv) Size() int     { return len(f.r.Query.Packet) }
func (f *viewEnv) ID() int       { return int(f.r.Query.ID) }
func (f *viewEnv) Opcode() int   { return f.r.Query.Opcode() }
func (f *viewEnv) DO() bool      { return f.r.Query.DO }

// Proto is tcp for TLS and HTTPS, too, and udp for QUIC.
func (f *viewEnv) Proto() string {
	return f.r.Proto.String()
}

func (f *viewEnv) Bufsize() int {
	if f.r.Proto == UDP {
		return f.r.Query.Limit()
	}
	return wire.MaxMessage
}

func (f *viewEnv) Client() netip.AddrPort { return f.r.Client }
func (f *viewEnv) Server() netip.AddrPort { return f.server }

func (f *viewEnv) Metadata(name string) string { return f.r.metadata(f.zone, name) }
