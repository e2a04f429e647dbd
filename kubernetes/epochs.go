package kubernetes

import (
	"container/list"
	"sync"
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
	// sent is the serial of the last snapshot; reserved says that there has been one. They are set with the view's lock
	// held for reading, and so don't change while it is held for writing.
	sent     atomic.Uint32
	reserved atomic.Bool
}

// change sets the serial after a change at that Unix time: to the time, or to a later one if a snapshot had
// it (RFC 1982).
func (s *zoneSerial) change(now uint32) {
	if sent := s.sent.Load(); s.reserved.Load() && int32(now-sent) <= 0 {
		now = sent + 1
	}
	s.Store(now)
}

func (s *zoneSerial) Load() uint32 { return s.value.Load() }

func (s *zoneSerial) Store(n uint32) {
	s.shared.Store(n)
	s.value.Store(n)
}

// clientEpoch is a counter that moves whenever [Zone.ClientNamespace] may give another result, before it does. It is
// shared with the copies of answers that depend on it.
type clientEpoch struct {
	value  atomic.Uint32
	shared epoch.Value
}

// acquire shares e with the copies of t.
func (e *clientEpoch) acquire(t *epoch.Table) {
	e.shared = t.AcquireValue()
	e.bump()
}

// bump increments e. The caller holds the view's lock for writing.
func (e *clientEpoch) bump() { e.shared.Store(e.value.Add(1)) }

// mark returns the mark of what depends on e now. Its index is 0 if nobody shares e.
func (e *clientEpoch) mark() epoch.Mark {
	return epoch.Mark{Index: e.shared.Index, Value: uint64(e.value.Load())}
}

func isAddressType(qtype uint16) bool { return qtype == wire.TypeA || qtype == wire.TypeAAAA }

// maxLargeBytes bounds the records of the large answers that a directive keeps: sixteen of the largest.
const maxLargeBytes = 1 << 20

// largeAnswers keeps the answers that take many steps to make, until something changes that they are made of. A client that
// asks for one over TCP, a thousand times a second, costs a copy each time. The answer that was not used for longest goes
// first. It is safe for concurrent use.
type largeAnswers struct {
	mu    sync.Mutex
	bytes int
	used  list.List // of *largeAnswer, the last one used first
	byKey map[largeKey]*list.Element
}

// largeKey identifies an answer: the question, and the limit of the reply, by which the answer may be cut.
type largeKey struct {
	name  string
	qtype uint16
	limit int
}

type largeAnswer struct {
	key   largeKey
	body  wire.ReplyBody
	valid epoch.Watch
}

func keyOfLarge(q *wire.Query, r *wire.Reply) largeKey {
	return largeKey{name: string(q.Name()), qtype: q.Type, limit: r.Limit()}
}

// get makes r the answer that is kept for q, and reports whether there is one.
func (l *largeAnswers) get(q *wire.Query, r *wire.Reply) bool {
	l.mu.Lock()
	at := l.byKey[keyOfLarge(q, r)]
	if at == nil {
		l.mu.Unlock()
		return false
	}
	a := at.Value.(*largeAnswer)
	if !a.valid.Holds() {
		l.remove(at)
		l.mu.Unlock()
		return false
	}
	l.used.MoveToFront(at)
	l.mu.Unlock()
	r.SetBody(a.body)
	return true
}

// put keeps r, the answer to q, as long as valid holds.
func (l *largeAnswers) put(q *wire.Query, r *wire.Reply, valid epoch.Watch) {
	a := &largeAnswer{key: keyOfLarge(q, r), body: r.Body(), valid: valid}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.byKey[a.key]; at != nil {
		l.remove(at)
	}
	if l.byKey == nil {
		l.byKey = make(map[largeKey]*list.Element)
	}
	l.byKey[a.key] = l.used.PushFront(a)
	for l.bytes += a.body.Size(); l.bytes > maxLargeBytes; {
		l.remove(l.used.Back())
	}
}

// remove removes the answer at; l is locked.
func (l *largeAnswers) remove(at *list.Element) {
	a := l.used.Remove(at).(*largeAnswer)
	l.bytes -= a.body.Size()
	delete(l.byKey, a.key)
}

// isWhole reports whether r is a reply with records in its answer section, and the same ones each time: one over UDP without
// room for all has others.
func isWhole(r *wire.Reply) bool {
	return r.Rcode() == wire.NoError && r.Count(wire.Answer) > 0 && (!r.Overflows() || r.Limit() == wire.MaxMessage)
}
