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
