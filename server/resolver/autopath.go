package resolver

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Autopath finishes the search path of a client here, in place of one query from it
// for each domain on the path: where the name with the client's first domain behind
// it does not exist, it goes on with the other domains, and the reply leads from the
// name that was asked for to the one that was found. It is immutable and safe for
// concurrent use.
type Autopath struct {
	zones []wire.Name // whose names it is done for
	// clientNamespace gives the namespace that the first domain of the client's path starts
	// with, as one label; nil is one path for all clients.
	clientNamespace func(client netip.Addr) (namespace []byte, ok bool)
	paths           []searchPath
}

// searchPath is the domains on the path of a client that asks for a name in zone.
type searchPath struct {
	zone  wire.Name
	first wire.Name   // the first domain, without the client's own label
	rest  []wire.Name // the domains behind it, each once, the root among them
}

// NewAutopath makes the search of cfg. cluster is the one of the same server block;
// it may be nil if cfg.Kubernetes isn't set.
func NewAutopath(cfg *config.Autopath, cluster Cluster) *Autopath {
	s := &Autopath{zones: cfg.Zones}
	if !cfg.Kubernetes {
		if len(cfg.Search) > 0 {
			first := cfg.Search[0]
			s.paths = []searchPath{{zone: first, first: first, rest: restOf(first, cfg.Search[1:])}}
		}
		return s
	}
	s.clientNamespace = cluster.ClientNamespace
	for _, zone := range cluster.Origins() {
		services, ok := prepend("\x03svc", zone)
		if !ok {
			continue
		}
		s.paths = append(s.paths, searchPath{
			zone: zone, first: services,
			rest: restOf("", append([]wire.Name{services, zone}, cfg.Search...)),
		})
	}
	return s
}

// prepend is the name in zone that begins with label; false if it is too long.
func prepend(label, zone wire.Name) (wire.Name, bool) {
	return label + zone, len(label)+len(zone) <= wire.MaxName
}

// restOf is the rest of a path: the domains as they come, but none twice, and the
// name as it was written, which is last unless it stands before.
func restOf(first wire.Name, domains []wire.Name) (rest []wire.Name) {
	for _, d := range append(slices.Clone(domains), wire.Root) {
		if d != first && !slices.Contains(rest, d) {
			rest = append(rest, d)
		}
	}
	return rest
}

// find gives the path on which client asks for q, and how many bytes of the name
// stand before the path's first domain: at least one label. A nil path says that the
// name is not on the client's path, or that nobody knows the client's.
func (s *Autopath) find(q *wire.Query, client netip.Addr) (p *searchPath, base int) {
	name := q.Name()
	p = s.path(name)
	if p == nil || !wire.Under(name, p.first) {
		return nil, 0
	}
	base = len(name) - len(p.first)
	if s.clientNamespace != nil {
		namespace, ok := s.clientNamespace(client)
		if !ok || !endsWith(name[:base], namespace) {
			return nil, 0
		}
		base -= len(namespace)
	}
	if base == 0 {
		return nil, 0
	}
	return p, base
}

// path is the one of the longest zone that name is in, nil if it is in none.
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

// endsWith reports whether label is the last one of labels.
func endsWith(labels, label []byte) bool {
	for len(labels) > len(label) {
		labels = labels[1+int(labels[0]):]
	}
	return bytes.Equal(labels, label)
}

// autopath is the step behind the zone's sources, which have come to o: a name that does not
// exist is looked for further down the client's search path.
func (rt *Routes) autopath(r *Request, o Outcome) Outcome {
	if o == Answered && r.reply.Rcode() != wire.NXDomain {
		return o
	}
	p, base := r.zone.Autopath.find(&r.Query, r.Client.Addr().Unmap())
	if p == nil {
		return o
	}
	if o = r.finishForward(o); o != Answered || r.err != nil || r.reply.Rcode() != wire.NXDomain {
		return o
	}
	return rt.trySearchPath(r, p, base)
}

// trySearchPath asks for one name after the other along p, until one exists or can't be
// resolved: that is what r's reply becomes. Where there is none the reply to the first name
// stays. A name of the path that no zone takes belongs to r's zone: it would be REFUSED if
// the client asked for it, but the client may know of another server.
func (rt *Routes) trySearchPath(r *Request, p *searchPath, base int) Outcome {
	sub := newSubquery()
	defer sub.release()
	for _, domain := range p.rest {
		if !sub.askIn(r, base, domain) {
			continue
		}
		sub.onPath = true
		if sub.zone = rt.match(&sub.Request); sub.zone == nil {
			sub.zone = r.zone
		}
		if sub.finishForward(rt.ask(&sub.Request)) == WouldWait {
			return WouldWait
		}
		if sub.reply.Rcode() != wire.NXDomain {
			r.takeReply(&sub.Request)
			break
		}
	}
	return Answered
}

// takeReply makes other's reply the one to r. Errors are passed on bare, so that the client
// asks again. An answer that can't be moved to another name leaves the search to the client:
// r's name does not exist.
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
	r.inherit(other)
}
