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
