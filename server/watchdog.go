package server

import "sync/atomic"

// progress counts what one reader does: it is odd while a batch is answered, even while
// packets are waited for. The reader alone moves it; it has a cache line to itself, as
// each reader writes to its own twice for each batch.
type progress struct {
	n    atomic.Uint64
	last uint64 // of [Server.Alive]
	_    [48]byte
}

// tick begins a batch, or ends it.
func (t *progress) tick() { t.n.Store(t.n.Load() + 1) }

// stuck reports whether the reader is at the same batch as the last time.
func (t *progress) stuck() bool {
	n := t.n.Load()
	same := n == t.last
	t.last = n
	return same && n%2 == 1
}

// Alive reports whether no reader has been busy with the same packets since the last call,
// as one that waits for a lock which nobody lets go would be. It says nothing of readers
// that wait for packets. It waits while addresses are changed; one goroutine calls it.
func (s *Server) Alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	alive := true
	for _, l := range s.listeners {
		for i := range l.progress {
			alive = !l.progress[i].stuck() && alive
		}
	}
	return alive
}
