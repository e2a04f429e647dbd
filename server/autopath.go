package server

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
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

// search is the step behind all others: x, whose name as it was asked for has come
// to at, goes on along its client's search path. It does so without waiting if none
// of the names on the way takes that.
func (rt *Routes) search(x *request, at step) step {
	if at == alias || at == done && x.reply.Rcode() != wire.NXDomain {
		return at
	}
	p, base := x.zone.Autopath.find(&x.query, x.client.Addr().Unmap())
	if p == nil {
		return at
	}
	if at == done {
		waits, _ := rt.walk(x, p, base, nil)
		if !waits {
			return done
		}
	}
	x.reply.Reset()
	x.source = fromServer
	return walk
}

// searchOn is search where it may wait. It begins anew: a moment ago some name took
// waiting, and it may be another client's by now who has the address.
func (rt *Routes) searchOn(ctx context.Context, x *request) error {
	wait := func(x *request, at step) error { return rt.complete(ctx, x, at) }
	if err := wait(x, x.zone.resolve(x)); err != nil || x.reply.Rcode() != wire.NXDomain {
		return err
	}
	p, base := x.zone.Autopath.find(&x.query, x.client.Addr().Unmap())
	if p == nil {
		return nil
	}
	_, err := rt.walk(x, p, base, wait)
	return err
}

// walk asks for one name after the other along p, until there is one that exists or
// can't be resolved: that is what x's reply becomes. Where there is none, x's reply,
// that to the first name, stays. wait completes what takes waiting; without it, such
// a name ends the walk with waits, and x is as it was.
//
// A name of the path that no zone takes is x's zone's: it would be REFUSED if the
// client asked for it, but the client may know of another server.
func (rt *Routes) walk(x *request, p *searchPath, base int, wait func(*request, step) error) (waits bool, err error) {
	w, now := walkers.Get().(*walker), x.arrival
	for _, domain := range p.rest {
		if wait != nil {
			now = clock.Now()
		}
		if !w.turn(x, base, domain, now) {
			continue
		}
		if w.zone = rt.match(&w.request); w.zone == nil {
			w.zone = x.zone
		}
		if at := w.zone.resolve(&w.request); at != done {
			if waits = wait == nil; waits {
				break
			}
			err = wait(&w.request, at)
		}
		if w.reply.Rcode() != wire.NXDomain {
			x.adopt(&w.request)
			break
		}
	}
	w.release()
	return waits, err
}

// adopt makes other's reply x's. Errors are passed on bare, so that the client asks
// again. An answer that can't be moved to another name leaves it to the client to go
// on: x's name does not exist.
func (x *request) adopt(other *request) {
	switch rcode := other.reply.Rcode(); {
	case rcode != wire.NoError:
		x.reply.Fail(rcode)
		x.reply.CopyEDE(&other.reply)
	case x.reply.Adopt(&other.reply):
		x.reply.CopyEDE(&other.reply)
		x.viaSearch = true
	default:
		x.reply.Fail(wire.NXDomain)
	}
	x.source, x.ordered = fromSearch, other.ordered
	x.inherit(other)
}

// walker is what asking for the names on a path takes: an exchange of its own, whose
// packet and reply are in buffers that are used again for each name and each walk.
type walker struct {
	request
	name   [wire.MaxName]byte
	packet [packetBuffer]byte
	out    [replyBuffer]byte
}

// packetBuffer holds the longest query that a walker makes: header, the longest name,
// its type and class, and an OPT record of 11 bytes.
const packetBuffer = wire.HeaderLen + wire.MaxName + 4 + 11

// release gives w back.
func (w *walker) release() {
	w.zone, w.pool, w.missing, w.budget = nil, nil, nil, nil // may be gone before the next time
	walkers.Put(w)
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

// turn makes w the exchange for the first base bytes of x's name, in the case in which
// they were asked for, with domain behind them, at now; false if there is no such name.
func (w *walker) turn(x *request, base int, domain wire.Name, now time.Duration) bool {
	if base+len(domain) > wire.MaxName {
		return false
	}
	n := copy(w.name[:], x.query.Packet[wire.HeaderLen:wire.HeaderLen+base])
	n += copy(w.name[n:], domain)
	return w.begin(x, w.name[:n], x.query.Type, now)
}

// begin makes w the exchange for name and qtype, else as x's, at now; false if that is
// no query.
func (w *walker) begin(x *request, name []byte, qtype uint16, now time.Duration) bool {
	packet := wire.AppendQuery(w.packet[:0], x.query.ID, name, qtype, &x.query, wire.MinUDP)
	w.arrival, w.proto, w.client, w.place, w.hops, w.ordered, w.verdicts = now, x.proto, x.client, x.place, x.hops, false, 0
	w.budget = x.budget
	if w.query.Parse(packet) != wire.Serve {
		return false
	}
	w.reply.Start(w.out[:0], &w.query)
	return true
}
