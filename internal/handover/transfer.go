package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// handleTakeover handles the hello of an agent that wants to take over.
func (h *Server) handleTakeover(ctx context.Context, l *peerConn, hi helloHead) {
	version := hi.commonVersion()
	state, reason := h.claimSuccessor(l, hi, version != 0)
	reply := h.helloHead(state)
	if state == stateRefused {
		reply.Reason = reason
	}
	if err := l.send(kindHello, reply, nil); err != nil {
		h.compareAndSetPhase(transferring, serving)
		return
	}
	log := h.log.With("successor", truncate(hi.Agent))
	switch {
	case version == 0:
		log.Warn("successor speaks no common protocol version; it waits for the end of this agent",
			"its_versions", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "versions", fmt.Sprintf("%d-%d", minVersion, maxVersion))
		h.keepOpen(l)
	case state == stateRefused:
		log.Warn("successor refused: this agent has taken the node back from it", "reason", reason)
	case state == stateStopping:
		log.Info("successor waits for the end of this agent, which is stopping")
		h.keepOpen(l)
	case state == stateOK:
		h.serveSuccessor(ctx, l, hi)
	}
}

// claimSuccessor makes l the successor's connection if there is none, and if it is wanted. It
// returns the state for the hello, and the reason for stateRefused.
func (h *Server) claimSuccessor(l *peerConn, hi helloHead, wanted bool) (state, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason = h.refusals.of(hi); h.phase == serving && !h.stopping && reason != "" {
		h.refused.Add(1)
		return stateRefused, reason
	}
	switch {
	case h.phase != serving:
		return stateBusy, ""
	case h.stopping:
		return stateStopping, ""
	case wanted:
		h.successor = l
		h.setPhase(transferring)
	}
	return stateOK, ""
}

// serveSuccessor hands over to the successor at l. It returns when either agent ends.
func (h *Server) serveSuccessor(ctx context.Context, l *peerConn, hi helloHead) {
	log := h.log.With("successor", truncate(hi.Agent))
	log.Info("handover started")
	patience := h.limits.patience
	if hi.PatienceMS > 0 {
		patience = min(time.Duration(min(hi.PatienceMS, maxPatience.Milliseconds()))*time.Millisecond, maxPatience)
	}
	end := time.Now().Add(patience)
	g := giver{conn: l, source: h.source, limits: h.limits, log: h.log, next: func() (messageKind, error) { return nextRequest(l, end) }}
	err := g.awaitCommit(ctx, end)
	if err == nil && !h.compareAndSetPhase(transferring, draining) {
		err = errors.New("this agent has stopped waiting for it")
	}
	if err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(transferring, serving)
		log.Warn("handover failed; this agent keeps serving", "err", err)
		return
	}
	h.suspend(ctx, l, &g, hi)
}

// nextRequest waits for the successor's next request.
func nextRequest(l *peerConn, end time.Time) (messageKind, error) {
	l.setDeadline(end)
	m, err := l.await(kindWantSockets, kindWantCache, kindWantStatistics, kindCommit)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("it did not commit in time: %w", err)
	}
	m.close()
	return m.kind, err
}

// suspend completes the handover to a successor that has committed. It returns when Serve ends,
// or when this agent serves again.
func (h *Server) suspend(ctx context.Context, l *peerConn, g *giver, hi helloHead) {
	if err := l.sendWithin(h.limits.step, kindCommitted, nil, nil); err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(draining, serving)
		h.log.Warn("the successor has ended; this agent keeps serving", "err", err)
		return
	}
	w := h.watchSuccessor(l, hi)
	h.log.Info("the successor has committed; finishing queries in flight")
	w.conns = g.suspend(ctx, w.ctx)
	h.afterCommit(ctx, l, w)
}

// currentServer returns a connection to the agent that serves at the socket, nil if there is
// none.
func (h *Server) currentServer(ctx context.Context) *peerConn {
	for ctx.Err() == nil && !h.ownsSocket() {
		l, err := dial(h.dir)
		if err != nil || l == nil {
			return nil
		}
		if _, err := l.checkPeer(); err != nil {
			l.close()
			return nil
		}
		hi, err := l.exchangeHello(ctx, h.limits.hello, h.config.helloHead(purposeWatch))
		if err == nil && hi.State != stateYielded {
			return l
		}
		l.close()
		if err != nil && !errors.Is(err, errClosed) {
			return nil
		}
		pause(ctx, retryDelay) // its process is ending, or is about to find its successor dead
	}
	return nil
}
