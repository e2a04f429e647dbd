package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// handleTakeover handles the hello of an agent that wants to take over.
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
		log.Warn("successor speaks no common protocol version; it waits for the end of this agent",
			"its_versions", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "versions", fmt.Sprintf("%d-%d", minVersion, maxVersion))
		h.keepOpen(l)
	case state == stateStopping:
		log.Info("successor waits for the end of this agent, which is stopping")
		h.keepOpen(l)
	case state == stateOK:
		h.serveSuccessor(ctx, l, hi)
	}
}

// claimSuccessor makes l the successor's connection if there is none, and if it is wanted. It
// returns the state for the hello.
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

// serveSuccessor hands over to the successor at l. It returns when either agent ends.
func (h *Server) serveSuccessor(ctx context.Context, l *peerConn, hi helloHead) {
	log := h.log.With("successor", truncate(hi.Agent))
	log.Info("handover started")
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
		log.Warn("handover failed; this agent keeps serving", "err", err)
		return
	}
	h.suspend(ctx, l)
}

// awaitCommit serves the requests of the successor until it commits.
func (h *Server) awaitCommit(ctx context.Context, l *peerConn, end time.Time) error {
	for range maxSkipped {
		l.setDeadline(end)
		m, err := l.await(kindWantSockets, kindWantCache, kindCommit)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("it did not commit in time: %w", err)
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
	return fmt.Errorf("it sent %d requests", maxSkipped)
}

func (h *Server) sendSockets(l *peerConn) error {
	all, err := h.source.Sockets()
	defer func() {
		for _, s := range all {
			s.File.Close()
		}
	}()
	if err != nil {
		h.log.Warn("handing over the sockets failed", "err", err)
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

// sendCache sends the cache in pieces.
func (h *Server) sendCache(ctx context.Context, l *peerConn, end time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	w := &cacheWriter{conn: l, limit: h.limits.piece, buf: make([]byte, 0, cachePieceSize)}
	last := cacheHead{End: true}
	err := h.source.WriteCache(ctx, w)
	if w.err == nil && err != nil {
		h.log.Warn("the cache is handed over in part", "err", err)
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

// cacheWriter is an [io.Writer] that sends what is written to it in pieces.
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

// suspend completes the handover to a successor that has committed. It returns when Serve ends,
// or when this agent serves again.
func (h *Server) suspend(ctx context.Context, l *peerConn) {
	if err := l.sendWithin(h.limits.step, kindCommitted, nil, nil); err != nil {
		h.failed.Add(1)
		h.compareAndSetPhase(draining, serving)
		h.log.Warn("the successor has ended; this agent keeps serving", "err", err)
		return
	}
	life := h.watchSuccessor(l)
	h.log.Info("the successor has committed; finishing queries in flight")
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
		h.log.Warn("queries were still in flight at the end of the handover", "err", err)
	}
	_ = l.sendWithin(h.limits.step, kindYielded, last, nil) // if it has ended, life ends, too
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

// afterCommit handles the end of a successor: if no other agent has taken over from it, this
// agent serves again.
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
		h.setPhase(draining) // Stop waits for the result
	}
	h.mu.Unlock()
	if over {
		return
	}
	h.resumed.Add(1)
	h.log.Warn("the successor has ended; this agent resumes")
	h.relisten() // first, so that a new agent does not find only the dead successor's socket
	h.source.Resume()
	h.mu.Lock()
	h.setPhase(serving)
	h.mu.Unlock()
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

// successorWatch watches the connection of a successor that has committed.
type successorWatch struct {
	ctx     context.Context // done when the connection ends
	settled chan struct{}   // closed when the successor is settled
}

// watchSuccessor starts to receive from l.
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

// awaitSettled waits until the successor has settled, or has ended, or limit has passed.
func (life *successorWatch) awaitSettled(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-life.settled:
	case <-life.ctx.Done():
	case <-t.C:
	}
}

// errOver: a connection was passed after Suspend had returned.
var errOver = errors.New("the handover is over")

// connSender sends connections to the successor until it is closed.
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
