package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// handleTakeover answers one who wants to take over.
func (h *Server) handleTakeover(ctx context.Context, l *peerConn, hi helloHead) {
	version := hi.commonVersion()
	state := h.claimSuccessor(l, version != 0)
	if err := l.send(kindHello, h.helloHead(state), nil); err != nil {
		h.compareAndSetPhase(transferring, serving)
		return
	}
	log := h.log.With("successor", truncate(hi.Agent))
	switch {
	case version == 0:
		log.Warn("an agent would take over, but speaks no common version of the hand-over; it waits for the end of this one",
			"its_versions", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "versions", fmt.Sprintf("%d-%d", minVersion, maxVersion))
		h.keepOpen(l)
	case state == stateStopping:
		log.Info("an agent would take over, but this one is stopping; it waits")
		h.keepOpen(l)
	case state == stateOK:
		h.serveSuccessor(ctx, l, hi)
	}
}

// claimSuccessor takes the successor's place for l if it is free and wanted.
func (h *Server) claimSuccessor(l *peerConn, wanted bool) (state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.phase != serving:
		return stateBusy
	case h.stopping:
		return stateStopping
	case wanted:
		h.successor = l
		h.setPhase(transferring)
	}
	return stateOK
}

// serveSuccessor serves the successor at the other end from hello to its end, or this agent's.
func (h *Server) serveSuccessor(ctx context.Context, l *peerConn, hi helloHead) {
	log := h.log.With("successor", truncate(hi.Agent))
	log.Info("another agent is going to take over")
	patience := h.limits.patience
	if hi.PatienceMS > 0 {
		patience = min(time.Duration(min(hi.PatienceMS, maxPatience.Milliseconds()))*time.Millisecond, maxPatience)
	}
	err := h.awaitCommit(ctx, l, time.Now().Add(patience))
	if err == nil && !h.compareAndSetPhase(transferring, draining) {
		err = errors.New("this agent has stopped waiting for it")
	}
	if err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(transferring, serving)
		log.Warn("the hand-over has come to nothing; this agent goes on", "err", err)
		return
	}
	h.suspend(ctx, l)
}

// awaitCommit does what the successor asks for, until it commits.
func (h *Server) awaitCommit(ctx context.Context, l *peerConn, end time.Time) error {
	for range maxSkipped {
		l.setDeadline(end)
		m, err := l.await(kindWantSockets, kindWantCache, kindCommit)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("it has not committed in time: %w", err)
		}
		if err != nil {
			return err
		}
		m.close()
		switch m.kind {
		case kindWantSockets:
			err = h.sendSockets(l)
		case kindWantCache:
			err = h.sendCache(ctx, l, end)
		case kindCommit:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("it has asked for something %d times", maxSkipped)
}

func (h *Server) sendSockets(l *peerConn) error {
	all, err := h.source.Sockets()
	defer func() {
		for _, s := range all {
			s.File.Close()
		}
	}()
	if err != nil {
		h.log.Warn("the sockets can't be handed over", "err", err)
		return l.sendWithin(h.limits.step, kindSockets, socketsHead{Fault: truncate(err.Error())}, nil)
	}
	for rest := all; ; {
		n := min(len(rest), maxFiles)
		list := socketsHead{Sockets: make([]socketInfo, n), More: len(rest) > n}
		files := make([]*os.File, n)
		for i, s := range rest[:n] {
			list.Sockets[i] = socketInfo{Role: s.Role, Addr: s.Addr}
			files[i] = s.File
		}
		rest = rest[n:]
		if err := l.sendWithin(h.limits.step, kindSockets, list, nil, files...); err != nil {
			return fmt.Errorf("handing over sockets: %w", err)
		}
		if !list.More {
			return nil
		}
	}
}

// sendCache lets the estate write the cache in pieces.
func (h *Server) sendCache(ctx context.Context, l *peerConn, end time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	w := &cacheWriter{conn: l, limit: h.limits.piece, buf: make([]byte, 0, cachePieceSize)}
	last := cacheHead{End: true}
	err := h.source.WriteCache(ctx, w)
	if w.err == nil && err != nil {
		h.log.Warn("the cache can't be handed over whole", "err", err)
		last.Fault = truncate(err.Error())
	}
	if w.err == nil {
		w.err = l.sendWithin(h.limits.piece, kindCache, last, w.buf)
	}
	if w.err != nil {
		return fmt.Errorf("handing over the cache: %w", w.err)
	}
	return nil
}

// cacheWriter cuts what is written to it into messages.
type cacheWriter struct {
	conn  *peerConn
	limit time.Duration
	buf   []byte
	err   error
}

func (p *cacheWriter) Write(b []byte) (n int, err error) {
	for p.err == nil && len(b) > 0 {
		fits := min(len(b), cachePieceSize-len(p.buf))
		p.buf = append(p.buf, b[:fits]...)
		b, n = b[fits:], n+fits
		if len(p.buf) == cachePieceSize {
			p.err = p.conn.sendWithin(p.limit, kindCache, nil, p.buf)
			p.buf = p.buf[:0]
		}
	}
	return n, p.err
}

// suspend hands over to a successor that has committed, and comes back when Serve ends, or
// when nobody else is in charge any more.
func (h *Server) suspend(ctx context.Context, l *peerConn) {
	if err := l.sendWithin(h.limits.step, kindCommitted, nil, nil); err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(draining, serving)
		h.log.Warn("the agent that was taking over has ended; this one goes on", "err", err)
		return
	}
	life := h.watchSuccessor(l)
	h.log.Info("another agent has taken over; finishing what is under way")
	yctx, cancel := context.WithTimeout(ctx, h.limits.drain)
	stop := context.AfterFunc(life.ctx, cancel)
	p := connSender{line: l, limit: h.limits.step}
	err := h.source.Suspend(yctx, p.send)
	p.close()
	stop()
	cancel()
	var last cacheHead
	if err != nil {
		last.Fault = truncate(err.Error())
	}
	if err != nil && life.ctx.Err() == nil {
		h.log.Warn("not everything that was under way could be finished", "err", err)
	}
	_ = l.sendWithin(h.limits.step, kindYielded, last, nil) // at its end we hear of it anyway
	life.awaitSettled(h.limits.settle)
	if life.ctx.Err() == nil {
		h.completed.Add(1)
		h.compareAndSetPhase(draining, done)
		h.closeHandedOver.Do(func() { close(h.handedOver) })
		h.log.Info("everything is handed over", "connections", p.sent)
	}
	<-life.ctx.Done()
	h.afterCommit(ctx)
}

// afterCommit follows the end of a successor: somebody else may have taken over from it; if
// not, this agent goes back to work.
func (h *Server) afterCommit(ctx context.Context) {
	for ctx.Err() == nil {
		l := h.currentServer(ctx)
		if l == nil {
			break
		}
		h.compareAndSetPhase(draining, done)
		stop := context.AfterFunc(ctx, l.close)
		h.keepOpen(l)
		stop()
		l.close()
	}
	h.mu.Lock()
	over := ctx.Err() != nil || h.suspended
	if !over {
		h.setPhase(draining) // Stop waits for what comes of it
	}
	h.mu.Unlock()
	if over {
		return
	}
	h.resumed.Add(1)
	h.log.Warn("the agent that had taken over has ended; this one goes back to work")
	h.relisten() // first, so that who comes now does not take the successor's socket for nobody's
	h.source.Resume()
	h.mu.Lock()
	h.setPhase(serving)
	h.mu.Unlock()
}

// currentServer is a line to an agent in charge at the socket, or nil if there is none.
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
		pause(ctx, retryDelay) // its process is ending, or about to find out what we have
	}
	return nil
}

// successorWatch is a committed successor's connection.
type successorWatch struct {
	ctx     context.Context // done at its end
	settled chan struct{}   // closed when the successor is settled
}

// watchSuccessor receives from l from here on.
func (h *Server) watchSuccessor(l *peerConn) *successorWatch {
	ctx, cancel := context.WithCancel(context.Background())
	life := &successorWatch{ctx: ctx, settled: make(chan struct{})}
	l.setDeadline(time.Time{})
	h.running.Go(func() {
		defer cancel()
		calm := life.settled
		for {
			m, err := l.receive()
			m.close()
			switch {
			case errors.Is(err, errMalformed):
			case err != nil:
				return
			case m.kind == kindSettled && calm != nil:
				close(calm)
				calm = nil
			}
		}
	})
	return life
}

// awaitSettled waits until the successor has settled, has died, or limit has passed.
func (life *successorWatch) awaitSettled(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-life.settled:
	case <-life.ctx.Done():
	case <-t.C:
	}
}

// errOver: pass has been called after the end of Yield.
var errOver = errors.New("the hand-over is over")

// connSender lets connections through while it is open.
type connSender struct {
	line  *peerConn
	limit time.Duration

	mu     sync.Mutex
	closed bool
	sent   int
}

func (p *connSender) send(c Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errOver
	}
	if err := p.line.sendWithin(p.limit, kindConnection, connHead{Addr: c.Addr}, c.Read, c.File); err != nil {
		return fmt.Errorf("passing a connection: %w", err)
	}
	p.sent++
	return nil
}

func (p *connSender) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}
