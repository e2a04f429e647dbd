package server

import "sync/atomic"

// progress counts the batches of one UDP reader. The count is odd while the reader
// answers a batch and even while it waits for packets. Only the reader writes it. The
// padding gives each reader a cache line of its own, as it writes twice for each batch.
type progress struct {
	n    atomic.Uint64
	last uint64 // the count at the last call of [Server.Alive]
	_    [48]byte
}

// tick marks the beginning or the end of a batch.
func (t *progress) tick() { t.n.Store(t.n.Load() + 1) }

// stuck reports whether the reader is still answering the batch that it was answering at
// the last call.
func (t *progress) stuck() bool {
	n := t.n.Load()
	same := n == t.last
	t.last = n
	return same && n%2 == 1
}

// Alive reports whether every UDP reader is making progress. It returns false if a
// reader has been answering the same batch since the last call, as one that waits for a
// lock that is never released would be. A reader that waits for packets is alive. Alive
// blocks while [Server.Listen] changes addresses; only one goroutine may call it.
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
