package clients

import "time"

const (
	// sampleCount is the number of samples that a stripe keeps. To add them to the tables of names takes some
	// 15 µs.
	sampleCount = 64
	// sampleNameBytes is the room for their names.
	sampleNameBytes = 4 << 10
)

// sample is a query for the tables of names. The query's name is in the buffer.
type sample struct {
	identity uint32 // of the client
	weight   uint64 // 0 if it was not chosen but failed, or was slow
	slow     bool
	query    Query
}

// sampleBuffer has the queries of a stripe that are not yet in the tables of names. At low rates the CPU's caches
// have neither these tables nor their code, so that many queries at once cost much less than one after
// the other. The stripe's lock guards it.
type sampleBuffer struct {
	list  []sample
	names []byte
	// until is when the current half of a window ends. Later queries don't go into the buffer before the
	// earlier ones are in the tables.
	until time.Duration
}

// put reports whether there was room for q.
func (b *sampleBuffer) put(id uint32, q *Query, weight uint64, slow bool) bool {
	at := len(b.names)
	if q.Now >= b.until || len(b.list) == cap(b.list) || at+len(q.Name) > cap(b.names) {
		return false
	}
	b.names = append(b.names, q.Name...)
	b.list = append(b.list, sample{identity: id, weight: weight, slow: slow, query: *q})
	b.list[len(b.list)-1].query.Name = b.names[at:]
	return true
}

// addSample puts q into the buffer of s, or into the tables if the buffer has no room.
func (n *names) addSample(s *stripe, id uint32, q *Query, weight uint64, slow bool) {
	s.mu.Lock()
	buffered := s.samples.put(id, q, weight, slow)
	s.mu.Unlock()
	if !buffered {
		n.addNow(s, id, q, weight, slow)
	}
}

// addNow adds q, for which the buffer of s has no room, and the contents of the buffer, or of all buffers if a
// half of a window has ended.
func (n *names) addNow(s *stripe, id uint32, q *Query, weight uint64, slow bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.Now >= n.until {
		n.flush(q.Now)
	} else {
		n.flushStripe(s)
	}
	n.addLocked(id, q, weight, slow)
}

// flush adds the contents of the buffers to the tables. n.mu is held.
func (n *names) flush(now time.Duration) {
	half := TenSeconds.Length() / 2
	n.until = max(n.until, now.Truncate(half)+half)
	for i := range n.stripes {
		n.flushStripe(&n.stripes[i])
	}
}

func (n *names) flushStripe(s *stripe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.samples
	for i := range b.list {
		n.addLocked(b.list[i].identity, &b.list[i].query, b.list[i].weight, b.list[i].slow)
	}
	b.list, b.names, b.until = b.list[:0], b.names[:0], n.until
}
