package kubernetes

import (
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

func isAddressType(qtype uint16) bool { return qtype == wire.TypeA || qtype == wire.TypeAAAA }
