package resolver

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Autopath follows the client's search path on the server, so that the client need not send a
// query for each domain. If the name in the first domain does not exist, it tries the other
// domains. The reply has a CNAME from the client's name to the name it found. It is immutable
// and safe for concurrent use.
type Autopath struct {
	zones []wire.Name // whose names it is done for
	// clientNamespace returns the namespace that the first domain of the client's path begins
	// with, as one label. nil: all clients have the same path.
	clientNamespace func(client netip.Addr) (namespace []byte, ok bool)
	// clientMark returns the mark of all results of clientNamespace.
	clientMark func() epoch.Mark
	paths      []searchPath
}

// searchPath is the search path of clients that ask for a name in zone.
type searchPath struct {
	zone  wire.Name
	first wire.Name   // the first domain, without the client's own label
	rest  []wire.Name // the domains behind it, each once, the root among them
}

// NewAutopath makes the Autopath of cfg. cluster is the zone of the same server block; it may
// be nil if cfg.Kubernetes is not set.
func NewAutopath(cfg *config.Autopath, cluster Cluster) *Autopath {
	s := &Autopath{zones: cfg.Zones}
	if !cfg.Kubernetes {
		if len(cfg.Search) > 0 {
			first := cfg.Search[0]
			s.paths = []searchPath{{zone: first, first: first, rest: restOf(first, cfg.Search[1:])}}
		}
		return s
	}
	s.clientNamespace, s.clientMark = cluster.ClientNamespace, cluster.ClientMark
	for _, zone := range cluster.Origins() {
		services := "\x03svc" + zone
		if len(services) > wire.MaxName {
			continue
		}
		s.paths = append(s.paths, searchPath{
			zone: zone, first: services,
			rest: restOf("", append([]wire.Name{services, zone}, cfg.Search...)),
		})
	}
	return s
}

// restOf returns the domains after first, each once, and the root, which stands for the name as
// the client wrote it.
func restOf(first wire.Name, domains []wire.Name) (rest []wire.Name) {
	for _, d := range append(slices.Clone(domains), wire.Root) {
		if d != first && !slices.Contains(rest, d) {
			rest = append(rest, d)
		}
	}
	return rest
}

// find returns the search path of client for q, and how many bytes of the name come before the
// path's first domain: at least one label. The path is nil if the name is not on the client's
// path, or the path is unknown. If that depends on the client's namespace, g is set to the clients
// with the same one.
func (s *Autopath) find(q *wire.Query, client netip.Addr, g *ClientGroup) (p *searchPath, base int) {
	name := q.Name()
	p = s.path(name)
	if p == nil || !wire.Under(name, p.first) {
		return nil, 0
	}
	base = len(name) - len(p.first)
	if s.clientNamespace != nil {
		if s.group(client, g); g.Namespace == nil || !endsWith(name[:base], g.Namespace) {
			return nil, 0
		}
		base -= len(g.Namespace)
	}
	if base == 0 {
		return nil, 0
	}
	return p, base
}

// group sets the part of g that is about the namespace of client.
func (s *Autopath) group(client netip.Addr, g *ClientGroup) {
	g.Of, g.Namespace, g.Mark = s, nil, s.clientMark() // before the namespace
	if namespace, ok := s.clientNamespace(client); ok {
		g.Namespace = namespace
	}
}

// path returns the path of the longest zone that has name, nil for none.
func (s *Autopath) path(name []byte) *searchPath {
	if len(s.zones) > 0 && !slices.ContainsFunc(s.zones, func(z wire.Name) bool { return wire.Under(name, z) }) {
		return nil
	}
	for i := range s.paths {
		if wire.Under(name, s.paths[i].zone) {
			return &s.paths[i]
		}
	}
	return nil
}

// endsWith reports whether label is the last of labels.
func endsWith(labels, label []byte) bool {
	for len(labels) > len(label) {
		labels = labels[1+int(labels[0]):]
	}
	return bytes.Equal(labels, label)
}

// autopath is the step after the sources, whose outcome is o. It looks for a name that does not
// exist further down the client's search path.
func (rt *Routes) autopath(r *Request, o Outcome) Outcome {
	if o == Answered && r.reply.Rcode() != wire.NXDomain {
		return o
	}
	p, base := r.zone.Autopath.find(&r.Query, r.Client.Addr().Unmap(), &r.clients)
	if p == nil {
		return o
	}
	if o == Forward || o == WouldWait {
		r.mayBecome(fromSearch)
	}
	if o = r.finishForward(o); o != Answered || r.err != nil || r.reply.Rcode() != wire.NXDomain {
		return o
	}
	return rt.trySearchPath(r, p, base)
}

// trySearchPath asks for each name along p until one exists or fails; its reply becomes that to
// r. If none exists the first reply stays.
func (rt *Routes) trySearchPath(r *Request, p *searchPath, base int) Outcome {
	sub := newSubquery()
	defer sub.release()
	r.searched = true
	r.Sources.begin(r, base)
	for _, domain := range p.rest {
		if !sub.askIn(r, base, domain) {
			continue
		}
		sub.onPath = true
		if rt.askOnPath(r, &sub.Request) == WouldWait {
			r.mayBecome(fromSearch)
			return WouldWait
		}
		r.Sources.add(&sub.Request, domain)
		if sub.reply.Rcode() != wire.NXDomain {
			r.takeReply(&sub.Request)
			r.note(stepOf[fromSearch], Answered, "the name exists further down the client's search path, or failed there")
			break
		}
	}
	r.Sources.end()
	return Answered
}

// askOnPath asks sub, for a name on r's search path. A name that no zone has belongs to r's zone: a client would be REFUSED,
// but may know another server. A name that views leave to other clients is REFUSED.
func (rt *Routes) askOnPath(r, sub *Request) Outcome {
	z := rt.match(sub)
	sub.zone = cmp.Or(z, r.zone)
	if z == nil && rt.hasZone(sub.Query.Name(), wire.Root, func(*Zone) bool { return true }) {
		return sub.fail(wire.Refused)
	}
	if sub.zone == r.zone { // another zone has its own rules, and upstreams that may not get to know the client
		sub.Query.Options, sub.Query.Uncached = r.Query.Options, r.Query.Uncached
	}
	return sub.finishForward(rt.ask(sub))
}

// takeReply makes other's reply the reply to r. Errors have no records, so that the client asks
// again. If the answer can't be moved to r's name the reply is NXDOMAIN, and the client goes on
// itself.
func (r *Request) takeReply(other *Request) {
	switch rcode := other.reply.Rcode(); {
	case rcode != wire.NoError:
		r.reply.Fail(rcode)
		r.reply.CopyEDE(&other.reply)
	case r.reply.CopyAsAlias(&other.reply):
		r.reply.CopyEDE(&other.reply)
		r.viaSearch = true
	default:
		r.reply.Fail(wire.NXDomain)
	}
	r.source, r.ordered, r.err = fromSearch, other.ordered, other.err
	r.verdicts &^= forbidden | audited | byRule // of the first name, which the client need not have
	r.rpz = nil
	r.inherit(other)
}
