package server

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/mmsg"
)

// soonAgain is how soon after the last flush another one must come for the next replies to be expected at any moment: at
// 40,000 a second.
const soonAgain = 25 * time.Microsecond

// replyQueue collects the replies of a socket to queries that have waited, so that one system call sends several. Who adds
// the first one sees to it that the queue is flushed. It is safe for concurrent use.
type replyQueue struct {
	mu     sync.Mutex
	queued []*pendingQuery // owned by the queue

	several   atomic.Bool  // the last flush has sent several replies
	flushedAt atomic.Int64 // when that was, by package clock

	flushing sync.Mutex // guards the rest
	sending  []*pendingQuery
	out      [batchSize]mmsg.Message
	vectors  [batchSize]unix.Iovec
}

// add adds w, whose reply is complete. It reports whether w is the first one in the queue.
func (r *replyQueue) add(w *pendingQuery) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued = append(r.queued, w)
	return len(r.queued) == 1
}

// take makes what is in the queue r.sending, which is empty; r.flushing is locked.
func (r *replyQueue) take() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued, r.sending = r.sending, r.queued
}

// sendLater implements udpSocket.
func (p *blockingSocket) sendLater(w *pendingQuery) (flush func()) {
	if p.replies.add(w) {
		return p.flush
	}
	return nil
}

// flushReplies sends the replies in p's queue.
func (p *blockingSocket) flushReplies() {
	r := &p.replies
	if r.several.Load() || clock.Now()-time.Duration(r.flushedAt.Load()) < soonAgain {
		runtime.Gosched() // to goroutines that probably have replies, too
	}
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.take()
	for left := r.sending; len(left) > 0; {
		n := min(len(left), batchSize)
		p.sendReplies(left[:n])
		left = left[n:]
	}
	r.several.Store(len(r.sending) > 1)
	r.flushedAt.Store(int64(clock.Now()))
	for i, w := range r.sending {
		r.sending[i] = nil
		w.out = reuseBuffer(w.out, w.reply)
		w.discard()
	}
	r.sending = r.sending[:0]
}

// sendReplies sends the replies to at most batchSize queries; p.replies.flushing is locked.
func (p *blockingSocket) sendReplies(list []*pendingQuery) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed || len(list) == 1 {
		for _, w := range list {
			p.sendLocked(&w.to, w.reply)
		}
		return
	}
	r := &p.replies
	for i, w := range list {
		r.vectors[i].Base = &w.reply[0]
		r.vectors[i].SetLen(len(w.reply))
		p.setMsghdr(&r.out[i].Msghdr, &r.vectors[i], &w.to)
	}
	p.sendAll(r.out[:len(list)])
}
