package server

import (
	"runtime"
	"sync"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/upstream"
)

// pendingState is how far a pendingQuery has come with its turn.
type pendingState uint8

const (
	hasTurn pendingState = iota // it has got a turn at once, and the reader or a worker is about to start it
	queued                      // it waits for a turn, or has waited and is about to be started
	started                     // its turn is over
)

// pendingQuery is one UDP query that waits. It owns its buffers. It belongs to one goroutine or queue at a time; the
// package doc draws its way.
type pendingQuery struct {
	resolver.Request
	server  *Server
	place   share.Place
	waiter  share.Waiter[*pendingQuery] // in the queue for a turn
	state   pendingState
	parked  upstream.Waiter // waits for the upstream in place of a worker
	made    func()          // w.passTurn
	in      [udp.MaxQuery]byte
	out     []byte
	reply   []byte // to be sent later, usually in out
	to      udp.Peer
	rt      *resolver.Routes
	socket  udp.Socket
	outcome resolver.Outcome
}

// pendingQueries holds finished ones for reuse.
var pendingQueries = sync.Pool{New: func() any { return &pendingQuery{out: make([]byte, 0, udp.ReplyBuffer)} }}

// newPendingQuery returns a pendingQuery without a place.
func newPendingQuery() *pendingQuery {
	w := pendingQueries.Get().(*pendingQuery)
	if w.parked.Ready == nil {
		w.parked.Ready, w.parked.Resume = w.replied, w.resume
		w.place.OnLost, w.made = w.parked.Interrupt, w.passTurn
	}
	return w
}

// startForward begins to forward w, which has passed on its turn. If it returns true, w waits without a goroutine, and the
// caller must not use it. Otherwise a worker has to complete w.
func (w *pendingQuery) startForward() (parked bool) {
	w.state = started
	return w.StartForward(&w.parked)
}

// complete is what a worker does with w: it passes w's turn on, if it has one, and answers w or parks it. A large answer is made
// before that, so that a flood of them does not occupy a worker each. The worker must not use w afterwards.
func (w *pendingQuery) complete() {
	switch {
	case w.state == started:
	case w.Large():
		w.Made = w.made
	default:
		w.passTurn()
		if w.outcome == resolver.Forward && w.startForward() {
			return
		}
	}
	msg := w.server.wait(w.rt, &w.Request, w.outcome, w.out)
	w.passTurn()
	if msg != nil {
		w.socket.Send(&w.to, msg)
		w.out = udp.ReuseBuffer(w.out, msg)
	}
	w.discard()
}

// startWorker hands w, which has a turn or was started, to a worker. It does not block.
func (w *pendingQuery) startWorker() {
	s := w.server
	s.workers.busy.Add(1)
	if !s.workers.dispatch(w) {
		s.workers.running.Go(func() {
			for ; w != nil; w = s.workers.waitForWork(s.ctx) {
				w.complete()
				s.workers.busy.Add(-1)
			}
		})
	}
}

// passTurn passes w's turn on unless it is over.
func (w *pendingQuery) passTurn() {
	switch w.state {
	case started:
		return
	case queued:
		// A worker that another one has woken is the next to run on that one's P. Queries
		// whose upstreams have answered go first, else a chain of workers, each of which
		// wakes the next one, would keep the P from them.
		runtime.Gosched()
	case hasTurn:
	}
	w.state = started
	if next := w.server.turns.release(w.Place); next != nil {
		next.startWorker()
	}
}

// resume is the Resume of [upstream.Waiter]: a worker waits for the exchange from here on.
func (w *pendingQuery) resume() { w.startWorker() }

// replied is the Ready of [upstream.Waiter]: it answers w on the goroutine that has read the upstream's reply.
func (w *pendingQuery) replied() (flush func()) {
	if w.reply = w.server.wait(w.rt, &w.Request, w.outcome, w.out); w.reply == nil {
		w.discard()
		return nil
	}
	return w.socket.SendLater(w)
}

// Peer implements [udp.Late].
func (w *pendingQuery) Peer() *udp.Peer { return &w.to }

// Reply implements [udp.Late].
func (w *pendingQuery) Reply() []byte { return w.reply }

// Sent implements [udp.Late].
func (w *pendingQuery) Sent() {
	w.out = udp.ReuseBuffer(w.out, w.reply)
	w.discard()
}

// discard releases w's place and makes w available for another query.
func (w *pendingQuery) discard() {
	s := w.server
	w.server, w.rt, w.socket, w.reply, w.parked.ReadBy = nil, nil, nil, nil, nil // do not keep them alive in the pool
	s.waiting.Release(&w.place)
	pendingQueries.Put(w)
	s.running.Done()
}
