package server

import "sync/atomic"

// progress counts the batches of one UDP reader. The count is odd while the reader
// answers a batch and even while it waits for packets. Only the reader writes it. The
// padding gives each reader a cache line of its own, as it writes twice for each batch.
type progress struct {
	n atomic.Uint64
	_ [56]byte
}

// tick marks the beginning or the end of a batch.
func (t *progress) tick() { t.n.Store(t.n.Load() + 1) }

// Watchdog tells whether the UDP readers of a server, and the queries that wait, make progress. It is not
// safe for concurrent use; each user has its own.
type Watchdog struct {
	server *Server
	// last are the counts at the last call of Alive.
	last map[*progress]uint64
	// finished are the queries that had waited at the last call of WaitersFinish, if some waited then.
	finished uint64
	waited   bool
}

// Alive reports whether every UDP reader is making progress. It returns false if a
// reader has been answering the same batch since the last call, as one that waits for a
// lock that is never released would be. A reader that waits for packets is alive. Alive
// blocks while [Server.Listen] changes addresses.
func (w *Watchdog) Alive() bool {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	alive, counts := true, make(map[*progress]uint64, len(w.last))
	for _, l := range w.server.listeners {
		for i := range l.progress {
			reader := &l.progress[i]
			n := reader.n.Load()
			last, seen := w.last[reader]
			alive = alive && (!seen || n != last || n%2 == 0)
			counts[reader] = n
		}
	}
	w.last = counts
	return alive
}

// WaitersFinish reports whether queries that wait for an upstream or a view come to an end. It returns false if some
// have waited since the last call, and none has ended. Each query ends in time, so that this may last for seconds, but
// not for a minute.
func (w *Watchdog) WaitersFinish() bool {
	taken, finished := w.server.waiting.Progress()
	stuck := w.waited && taken > 0 && finished == w.finished
	w.waited, w.finished = taken > 0, finished
	return !stuck
}
