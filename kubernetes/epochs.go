package kubernetes

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Copies of answers are read without the view's lock; [epoch.Table] says until when they
// are valid. The index bumps a counter with the lock held before it changes, and answers
// read their data with the lock held, so an answer that begins after the bump has the new
// state. Data that is read without the lock (whether the view is synced, whether all pods
// are in view) only ever turns no answer into an answer, and there is no copy of the
// former.

// bumpService invalidates the copies of answers made from the service of key, and those
// that depend on the whole view. It precedes the change.
func (x *index) bumpService(key string) {
	if x.epochs != nil {
		x.epochs.Bump(x.serviceGroup([]byte(key)))
	}
}

// bumpNamespace invalidates copies before the object of ns is removed. With
// `namespace_labels` its services' names disappear, too.
func (x *index) bumpNamespace(ns *namespace) {
	if ns.objectCount > 0 {
		x.epochs.BumpAll()
		return
	}
	x.epochs.BumpAny()
}

// serviceGroup is the epoch group of answers made from the service of key alone.
func (x *index) serviceGroup(key []byte) uint64 { return maphash.Bytes(x.seed, key) }

// zoneSerial is the SOA serial of a zone, shared with the copies of answers, which read it
// when they are sent.
type zoneSerial struct {
	value  atomic.Uint32
	shared epoch.Value
}

func (s *zoneSerial) Load() uint32 { return s.value.Load() }

func (s *zoneSerial) Store(n uint32) {
	s.shared.Store(n)
	s.value.Store(n)
}

// serialOf returns o's serial. If there are copies it is read under the lock that guards
// changes; names that depend on nothing else would not wait for that lock.
func (v *View) serialOf(o *origin) uint32 {
	if v.index.epochs != nil {
		v.mu.RLock()
		defer v.mu.RUnlock()
	}
	return o.serial.Load()
}

// Mark returns the epoch mark of r, the answer that [Zone.Answer] has just given to q: when
// it no longer matches, a copy of r is invalid. An answer made from one Service, or denied
// because that Service does not exist, depends on the Service's group; other answers depend
// on every change that queries can see. Negative answers carry the zone's serial.
//
// The caller reads [epoch.Table.Any] before Answer and discards the copy unless it is
// unchanged after Mark. ok is false without [Options.Epochs], if r is not an answer of this
// zone, and for an alias that leads out of it. Mark does not block and does not change r.
func (z *Zone) Mark(q *wire.Query, r *wire.Reply) (mark epoch.Mark, ok bool) {
	name := q.Name()
	o := z.origin(name)
	if o == nil {
		return epoch.Mark{}, false
	}
	var b Budget
	b.Refill()
	m := z.lookup(name, o, &b)
	switch {
	case m.node == notFound && z.fallsThrough(name):
		return epoch.Mark{}, false
	case m.node == notFound:
		m.key = o.absentServiceKey(name)
	case m.isAlias() && isAddressType(q.Type):
		end := z.followAliases(m, o, &b)
		if end.isAlias() && !end.svc.target.Under(o.name) {
			return epoch.Mark{}, false
		}
		m = match{node: end.node} // it depends on more than one Service
	}
	if b.exhausted() {
		return epoch.Mark{}, false
	}
	return z.epochMark(&m, o, q, r)
}

// absentServiceKey returns the key of the Service whose absence is the reason that name
// does not exist in o, or a stand-in for names that are below neither services nor pods and
// never exist. It returns nil if the name's existence depends on more.
func (o *origin) absentServiceKey(name []byte) []byte {
	rel := name[:len(name)-len(o.name)]
	var at [3]int // offsets of the last labels
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		at[0], at[1], at[2] = at[1], at[2], off
		n++
	}
	last := string(rel[at[2]:])
	switch {
	case o.lacksServices() || last == "\x03pod" || last == "\x03svc" && n < 3:
		return nil
	case last == "\x03svc":
		return rel[at[0]:at[2]]
	}
	return rel[at[2]:]
}

// epochMark returns the mark of r, the answer to q made from m.
func (z *Zone) epochMark(m *match, o *origin, q *wire.Query, r *wire.Reply) (epoch.Mark, bool) {
	x := z.view.indexFor(o.imports)
	positive := r.Rcode() == wire.NoError && r.Count(wire.Answer) > 0
	switch {
	case x.epochs == nil, m.node == incomplete, q.Type == wire.TypeAXFR, q.Type == wire.TypeIXFR, !positive && !z.view.Synced():
		return epoch.Mark{}, false
	case m.key == nil, z.needsNamespaceObject && (o.imports || !positive): // the Namespace may be in the other index, or be created
		return x.epochs.MarkAny(), true
	}
	mark := x.epochs.Mark(x.serviceGroup(m.key))
	if !positive {
		if mark.Serial = o.serial.shared.Index; mark.Serial == 0 {
			return x.epochs.MarkAny(), true
		}
	}
	return mark, true
}

// followAliases returns the node that the aliases from m lead to; an alias if they leave o
// or don't end.
func (z *Zone) followAliases(m match, o *origin, b *Budget) match {
	for range maxCNAMEs {
		if !m.isAlias() || !m.svc.target.Under(o.name) {
			break
		}
		m = z.lookup([]byte(m.svc.target), o, b)
	}
	return m
}

// Touch records that q was answered from a copy: the data behind the answer stays in use.
// It does not block.
func (z *Zone) Touch(q *wire.Query) {
	if o := z.origin(q.Name()); o != nil {
		var b Budget
		b.Refill()
		m := z.lookup(q.Name(), o, &b) // which records the use
		if isAddressType(q.Type) {
			z.followAliases(m, o, &b)
		}
	}
}

// Mark is [Zone.Mark] for the answers of e. An answer that is the host name of a load
// balancer has none.
func (e *External) Mark(q *wire.Query, r *wire.Reply) (mark epoch.Mark, ok bool) {
	name := q.Name()
	o := e.zone.origin(name)
	if o == nil {
		return epoch.Mark{}, false
	}
	var b Budget
	b.Refill()
	m := e.lookup(name, o, &b)
	if b.exhausted() || m.node == notFound && e.zone.fallsThrough(name) || m.node == externalService && m.svc.loadBalancerName() != "" && isAddressType(q.Type) {
		return epoch.Mark{}, false
	}
	return e.zone.epochMark(&m, o, q, r)
}

// Touch is [Zone.Touch] for the answers of e.
func (e *External) Touch(q *wire.Query) {
	if o := e.zone.origin(q.Name()); o != nil {
		var b Budget
		b.Refill()
		e.lookup(q.Name(), o, &b)
	}
}

func isAddressType(qtype uint16) bool { return qtype == wire.TypeA || qtype == wire.TypeAAAA }
