package kubernetes

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Copies of answers are kept where the view's lock means nothing, and [tick.Table] says
// until when they are true. The index moves a counter under the lock before it is changed,
// and all that answers are made of is read under that lock, so that an answer that was
// begun after the counter moved is of the new state. What is read without it (whether the
// view is synced, whether all pods are in it) only ever makes an answer of what was none,
// and of that there is no copy.

// bumpService says that what is made of the service of key is about to change, and with it
// all that hangs on more.
func (x *index) bumpService(key string) {
	if x.epochs != nil {
		x.epochs.Bump(x.serviceGroup([]byte(key)))
	}
}

// bumpNamespace says that the object of ns is about to go. Where only namespaces whose objects
// are in view have names it takes those of its services with it.
func (x *index) bumpNamespace(ns *namespace) {
	if ns.objectCount > 0 {
		x.epochs.BumpAll()
		return
	}
	x.epochs.BumpAny()
}

// serviceGroup is what copies hang on that are made of the service of key alone.
func (x *index) serviceGroup(key []byte) uint64 { return maphash.Bytes(x.seed, key) }

// zoneSerial is that of a zone: copies have it as it is, not as it was.
type zoneSerial struct {
	value  atomic.Uint32
	shared epoch.Value
}

func (s *zoneSerial) Load() uint32 { return s.value.Load() }

func (s *zoneSerial) Store(n uint32) {
	s.shared.Store(n)
	s.value.Store(n)
}

// serialOf is o's serial. Where there are copies it is read under the lock that it is
// written under: names that hang on nothing else take no lock that would have them wait.
func (v *View) serialOf(o *origin) uint32 {
	if v.index.epochs != nil {
		v.mu.RLock()
		defer v.mu.RUnlock()
	}
	return o.serial.Load()
}

// Mark is what the answer r that [Zone.Answer] has just given to q hangs on: where it is made
// of one Service, or of that there is none, the group of that Service, with all others every
// change that queries can see. Negative answers have a serial, which copies follow.
//
// It is for those who read [tick.Table.Any] before Answer, and find it unmoved after
// Mark. ok is false without [Options.Epochs], for what is no answer of this zone, and for
// an alias that leads out of it: what comes behind that is somebody else's. It does not
// block, and leaves r as it is.
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
		m = match{node: end.node} // it hangs on more than one Service
	}
	if b.exhausted() {
		return epoch.Mark{}, false
	}
	return z.epochMark(&m, o, q, r)
}

// absentServiceKey is the key of the Service whose absence is why there is no such name in o, or what
// stands for it with names that are below neither Services nor pods, which nothing brings
// about; nil if more than that may.
func (o *origin) absentServiceKey(name []byte) []byte {
	rel := name[:len(name)-len(o.name)]
	var at [3]int // where the last labels start
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

// epochMark is what r, the answer to q that is made of m, hangs on.
func (z *Zone) epochMark(m *match, o *origin, q *wire.Query, r *wire.Reply) (epoch.Mark, bool) {
	x := z.view.indexFor(o.imports)
	positive := r.Rcode() == wire.NoError && r.Count(wire.Answer) > 0
	switch {
	case x.epochs == nil, m.node == incomplete, q.Type == wire.TypeAXFR, q.Type == wire.TypeIXFR, !positive && !z.view.Synced():
		return epoch.Mark{}, false
	case m.key == nil, z.needsNamespaceObject && (o.imports || !positive): // the namespace's object may be in the other index, or come
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

// followAliases is where the aliases from m on lead to, an alias if that is out of o or nowhere.
func (z *Zone) followAliases(m match, o *origin, b *Budget) match {
	for range maxCNAMEs {
		if !m.isAlias() || !m.svc.target.Under(o.name) {
			break
		}
		m = z.lookup([]byte(m.svc.target), o, b)
	}
	return m
}

// Touch notes that q, to which there was an answer, was asked again and answered with a
// copy of that: what it is made of stays in use. It does not block.
func (z *Zone) Touch(q *wire.Query) {
	if o := z.origin(q.Name()); o != nil {
		var b Budget
		b.Refill()
		m := z.lookup(q.Name(), o, &b) // which notes it
		if isAddressType(q.Type) {
			z.followAliases(m, o, &b)
		}
	}
}

// Mark is [Zone.Mark] for the answers of e. An answer that is the name of a load
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
