package udp

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/mmsg"
)

// soonAgain is how soon after the last flush another one must come for the next replies to be expected at any moment: at
// 40,000 a second.
const soonAgain = 25 * time.Microsecond

// replyQueue collects the replies of a socket to queries that have waited, so that one system call sends several. Who adds
// the first one sees to it that the queue is flushed. It is safe for concurrent use.
type replyQueue struct {
	mu     sync.Mutex
	queued []Late // owned by the queue

	several   atomic.Bool  // the last flush has sent several replies
	flushedAt atomic.Int64 // when that was, by package clock

	flushing sync.Mutex // guards the rest
	sending  []Late
	out      [BatchSize]mmsg.Message
	vectors  [BatchSize]unix.Iovec
}

// add adds l. It reports whether l is the first one in the queue.
func (r *replyQueue) add(l Late) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued = append(r.queued, l)
	return len(r.queued) == 1
}

// take makes what is in the queue r.sending, which is empty; r.flushing is locked.
func (r *replyQueue) take() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued, r.sending = r.sending, r.queued
}
