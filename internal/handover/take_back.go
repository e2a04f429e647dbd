package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// The kinds of reasons that the server itself finds. A successor names others.
const (
	// KindEnded: the successor has ended while it compared itself.
	KindEnded = "ended"
	// KindHang: it has stopped responding meanwhile.
	KindHang = "hang"
)

// successorWatch follows a successor that has committed.
type successorWatch struct {
	server *Server
	ctx    context.Context // done when the connection ends, unless the successor gives back
	// events are the successor's messages. After a return nobody receives any more.
	events   chan successorEvent
	agent    string
	identity string
	// comparing: the successor sends alive until it sends kept or return.
	comparing bool
	settled   bool
	// ticks is the number of ticks until alive is late. Ticks are counted instead of time, because
	// the successor can't send anything while the whole machine stands still.
	ticks int
	conns int // connections that were passed to it
}

type successorEvent struct {
	kind   messageKind
	reason reasonHead // of a return
}

// aliveTicks is the number of ticks in [timeouts.alive].
const aliveTicks = 12

// maxEvents bounds the events that wait while queries in flight end. More are dropped.
const maxEvents = 16

// watchSuccessor starts to receive from l.
func (h *Server) watchSuccessor(l *peerConn, hi helloHead) *successorWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &successorWatch{
		server: h, ctx: ctx, events: make(chan successorEvent, maxEvents),
		agent: truncate(hi.Agent), identity: hi.Identity, comparing: hi.Compare,
	}
	l.setDeadline(time.Time{})
	h.running.Go(func() {
		for {
			m, err := l.receive()
			m.close()
			if errors.Is(err, errMalformed) {
				continue
			}
			if err != nil {
				cancel()
				return
			}
			e := successorEvent{kind: m.kind}
			if m.kind == kindReturn {
				_ = decode(m.kind, m.head, &e.reason) // without a reason it is a return, too
			}
			select {
			case w.events <- e:
				if m.kind == kindReturn {
					return // takeBack receives
				}
			default:
			}
		}
	})
	return w
}

// ending is how the time of a successor that has committed ends.
type ending int

const (
	closed ending = iota // the connection has ended
	hangs                // it compares itself, and alive is late
	givesBack
)

// follow waits for the end of the successor's time. The reason is empty if the successor may try
// again.
func (w *successorWatch) follow() (ending, reasonHead) {
	settle := time.NewTimer(w.server.limits.settle)
	defer settle.Stop()
	tick := time.NewTicker(w.server.limits.alive / aliveTicks)
	defer tick.Stop()
	w.ticks = int((w.server.limits.settle + w.server.limits.alive) / (w.server.limits.alive / aliveTicks))
	for {
		var ticks <-chan time.Time // nil: alive is not expected
		if w.comparing {
			ticks = tick.C
		}
		select {
		case <-w.ctx.Done():
			if w.comparing {
				return closed, reasonHead{"it ended while it compared itself with this agent", []string{KindEnded}}
			}
			return closed, reasonHead{}
		case <-ticks:
			if w.ticks--; w.ticks > 0 {
				continue
			}
			return hangs, reasonHead{fmt.Sprintf("it did not respond for %v", w.server.limits.alive), []string{KindHang}}
		case <-settle.C:
			w.settle()
		case e := <-w.events:
			if e.kind == kindReturn {
				return givesBack, e.reason
			}
			w.handle(e.kind)
		}
	}
}

// handle handles a message of the successor.
func (w *successorWatch) handle(k messageKind) {
	switch {
	case k == kindSettled:
		w.settle()
		w.expectAlive()
	case k == kindAlive:
		w.expectAlive()
	case k == kindKept && w.comparing:
		w.comparing = false
		w.server.source.Release()
		w.end()
	}
}

// expectAlive gives the successor the usual time until its next alive.
func (w *successorWatch) expectAlive() { w.ticks = aliveTicks }

// settle notes once that the successor waits for its own successor.
func (w *successorWatch) settle() {
	if w.settled {
		return
	}
	w.settled = true
	h := w.server
	h.completed.Add(1)
	h.compareAndSetPhase(draining, done)
	h.log.Info("everything is handed over", "connections", w.conns)
	w.end()
}

// end lets this agent end when the successor has settled and does not compare itself any more.
func (w *successorWatch) end() {
	if w.settled && !w.comparing {
		w.server.closeHandedOver.Do(func() { close(w.server.handedOver) })
	}
}

// afterCommit follows a successor that has committed, and makes this agent serve again after
// it, unless another agent has taken over from the successor meanwhile.
func (h *Server) afterCommit(ctx context.Context, l *peerConn, w *successorWatch) {
	end, reason := w.follow()
	if end == closed {
		h.awaitLaterSuccessors(ctx)
	}
	if !h.beginResume(ctx) {
		return
	}
	h.refuseLater(w.identity, reason)
	log := h.log.With("successor", w.agent)
	if end == givesBack {
		h.returned.Add(1)
		log.Warn("the successor gives back", "reason", truncate(reason.Reason))
		h.takeBack(ctx, l)
	} else {
		h.resumed.Add(1)
		log.Warn("the successor has ended; this agent resumes", "reason", reason.Reason)
		h.relisten() // first, so that a new agent does not find only the dead successor's socket
		h.source.Resume()
	}
	_ = l.sendWithin(h.limits.step, kindResumed, reasonHead{Reason: cmp.Or(truncate(reason.Reason), "it has taken back the node")}, nil)
	h.mu.Lock()
	h.setPhase(serving)
	h.mu.Unlock()
}

// awaitLaterSuccessors waits for the end of the agents that have taken over from the successor.
func (h *Server) awaitLaterSuccessors(ctx context.Context) {
	for ctx.Err() == nil {
		l := h.currentServer(ctx)
		if l == nil {
			return
		}
		h.compareAndSetPhase(draining, done)
		stop := context.AfterFunc(ctx, l.close)
		h.keepOpen(l)
		stop()
		l.close()
	}
}

// beginResume reports whether this agent serves again. Then Stop waits until it does.
func (h *Server) beginResume(ctx context.Context) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil || h.suspended {
		return false
	}
	h.setPhase(draining)
	return true
}

// takeBack makes this agent serve again, and receives what the successor gives back. Whatever
// fails: this agent serves.
func (h *Server) takeBack(ctx context.Context, l *peerConn) {
	r := receiver{conn: l, limits: h.limits, closed: func(context.Context) error { return errClosed }}
	err := h.receiveCache(ctx, &r)
	h.relisten()
	h.source.ResumeReading()
	if r.broken == nil {
		err = errors.Join(err, r.commit(ctx, h.source.Adopt))
	}
	h.source.Resume()
	if err != nil {
		h.log.Warn("the successor has not given back everything", "err", err)
	}
}

// receiveCache adds the successor's answers to the agent's own.
func (h *Server) receiveCache(ctx context.Context, r *receiver) error {
	ctx, cancel := context.WithTimeout(ctx, h.limits.back)
	defer cancel()
	stream, err := r.requestCache(ctx)
	if err != nil {
		return err
	}
	return errors.Join(h.source.ReadCache(ctx, stream), stream.Close())
}

// maxRefusals bounds the identities that are refused. The oldest is forgotten first.
const maxRefusals = 64

// refusals are the successors that may not take over again. The server's mutex guards them.
type refusals struct {
	list  []refusal
	kinds map[string]uint64 // how often, by kind of the reason
	last  string
}

type refusal struct{ identity, reason string }

// refuseLater records why a successor has given back, or has failed. Without kinds it may try
// again.
func (h *Server) refuseLater(identity string, r reasonHead) {
	if len(r.Kinds) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.refusals
	s.last = cmp.Or(truncate(r.Reason), "no reason given")
	if s.kinds == nil {
		s.kinds = make(map[string]uint64)
	}
	for _, kind := range r.Kinds[:min(len(r.Kinds), maxKinds)] {
		if _, known := s.kinds[kind]; known || len(s.kinds) < maxKinds {
			s.kinds[truncate(kind)]++
		}
	}
	if identity == "" {
		return
	}
	if len(s.list) == maxRefusals {
		s.list = s.list[1:]
	}
	s.list = append(s.list, refusal{identity, s.last})
}

// of returns why the successor is refused, "" if it is not: it has no identity, or does not
// compare itself.
func (s *refusals) of(hi helloHead) string {
	for _, r := range s.list {
		if hi.Compare && hi.Identity != "" && r.identity == hi.Identity {
			return r.reason
		}
	}
	return ""
}
