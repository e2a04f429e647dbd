package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// succession answers one who wants to take over.
func (h *Host) succession(ctx context.Context, l *line, hi greeting) {
	version := hi.spoken()
	state := h.claim(l, version != 0)
	if err := l.send(hello, h.greeting(state), nil); err != nil {
		h.advance(giving, serving)
		return
	}
	log := h.log.With("successor", clip(hi.Agent))
	switch {
	case version == 0:
		log.Warn("an agent would take over, but speaks no common version of the hand-over; it waits for the end of this one",
			"its_versions", fmt.Sprintf("%d-%d", hi.Min, hi.Max), "versions", fmt.Sprintf("%d-%d", minVersion, maxVersion))
		h.hold(l)
	case state == stateStopping:
		log.Info("an agent would take over, but this one is stopping; it waits")
		h.hold(l)
	case state == stateOK:
		h.give(ctx, l, hi)
	}
}

// claim takes the successor's place for l if it is free and wanted.
func (h *Host) claim(l *line, wanted bool) (state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.phase != serving:
		return stateBusy
	case h.stopping:
		return stateStopping
	case wanted:
		h.heir = l
		h.become(giving)
	}
	return stateOK
}

// give serves the successor at the other end from hello to its end, or this agent's.
func (h *Host) give(ctx context.Context, l *line, hi greeting) {
	log := h.log.With("successor", clip(hi.Agent))
	log.Info("another agent is going to take over")
	patience := h.limits.patience
	if hi.PatienceMS > 0 {
		patience = min(time.Duration(min(hi.PatienceMS, longestPatience.Milliseconds()))*time.Millisecond, longestPatience)
	}
	err := h.attend(ctx, l, time.Now().Add(patience))
	if err == nil && !h.advance(giving, yielding) {
		err = errors.New("this agent has stopped waiting for it")
	}
	if err != nil {
		h.failed.Add(1)
		h.advance(giving, serving)
		log.Warn("the hand-over has come to nothing; this agent goes on", "err", err)
		return
	}
	h.yield(ctx, l)
}

// attend does what the successor asks for, until it commits.
func (h *Host) attend(ctx context.Context, l *line, end time.Time) error {
	for range maxSkipped {
		l.until(end)
		m, err := l.await(wantSockets, wantCache, commit)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("it has not committed in time: %w", err)
		}
		if err != nil {
			return err
		}
		m.drop()
		switch m.kind {
		case wantSockets:
			err = h.giveSockets(l)
		case wantCache:
			err = h.giveCache(ctx, l, end)
		case commit:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("it has asked for something %d times", maxSkipped)
}

func (h *Host) giveSockets(l *line) error {
	all, err := h.estate.Sockets()
	defer func() {
		for _, s := range all {
			s.File.Close()
		}
	}()
	if err != nil {
		h.log.Warn("the sockets can't be handed over", "err", err)
		return l.sendWithin(h.limits.step, sockets, inventory{Fault: clip(err.Error())}, nil)
	}
	for rest := all; ; {
		n := min(len(rest), maxFiles)
		list := inventory{Sockets: make([]label, n), More: len(rest) > n}
		files := make([]*os.File, n)
		for i, s := range rest[:n] {
			list.Sockets[i] = label{Role: s.Role, Addr: s.Addr}
			files[i] = s.File
		}
		rest = rest[n:]
		if err := l.sendWithin(h.limits.step, sockets, list, nil, files...); err != nil {
			return fmt.Errorf("handing over sockets: %w", err)
		}
		if !list.More {
			return nil
		}
	}
}

// giveCache lets the estate write the cache in pieces.
func (h *Host) giveCache(ctx context.Context, l *line, end time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	w := &pieces{line: l, limit: h.limits.piece, buf: make([]byte, 0, piece)}
	last := progress{End: true}
	err := h.estate.WriteCache(ctx, w)
	if w.err == nil && err != nil {
		h.log.Warn("the cache can't be handed over whole", "err", err)
		last.Fault = clip(err.Error())
	}
	if w.err == nil {
		w.err = l.sendWithin(h.limits.piece, cachePiece, last, w.buf)
	}
	if w.err != nil {
		return fmt.Errorf("handing over the cache: %w", w.err)
	}
	return nil
}

// pieces cuts what is written to it into messages.
type pieces struct {
	line  *line
	limit time.Duration
	buf   []byte
	err   error
}

func (p *pieces) Write(b []byte) (n int, err error) {
	for p.err == nil && len(b) > 0 {
		fits := min(len(b), piece-len(p.buf))
		p.buf = append(p.buf, b[:fits]...)
		b, n = b[fits:], n+fits
		if len(p.buf) == piece {
			p.err = p.line.sendWithin(p.limit, cachePiece, nil, p.buf)
			p.buf = p.buf[:0]
		}
	}
	return n, p.err
}

// yield hands over to a successor that has committed, and comes back when Serve ends, or
// when nobody else is in charge any more.
func (h *Host) yield(ctx context.Context, l *line) {
	if err := l.sendWithin(h.limits.step, committed, nil, nil); err != nil {
		h.failed.Add(1)
		h.advance(yielding, serving)
		h.log.Warn("the agent that was taking over has ended; this one goes on", "err", err)
		return
	}
	life := h.attach(l)
	h.log.Info("another agent has taken over; finishing what is under way")
	yctx, cancel := context.WithTimeout(ctx, h.limits.yield)
	stop := context.AfterFunc(life.ctx, cancel)
	p := passage{line: l, limit: h.limits.step}
	err := h.estate.Yield(yctx, p.pass)
	p.close()
	stop()
	cancel()
	var last progress
	if err != nil {
		last.Fault = clip(err.Error())
	}
	if err != nil && life.ctx.Err() == nil {
		h.log.Warn("not everything that was under way could be finished", "err", err)
	}
	_ = l.sendWithin(h.limits.step, yielded, last, nil) // at its end we hear of it anyway
	life.settled(h.limits.settle)
	if life.ctx.Err() == nil {
		h.completed.Add(1)
		h.advance(yielding, done)
		h.finish.Do(func() { close(h.finished) })
		h.log.Info("everything is handed over", "connections", p.passed)
	}
	<-life.ctx.Done()
	h.aftermath(ctx)
}

// aftermath follows the end of a successor: somebody else may have taken over from it; if
// not, this agent goes back to work.
func (h *Host) aftermath(ctx context.Context) {
	for ctx.Err() == nil {
		l := h.incumbent(ctx)
		if l == nil {
			break
		}
		h.advance(yielding, done)
		stop := context.AfterFunc(ctx, l.close)
		h.hold(l)
		stop()
		l.close()
	}
	h.mu.Lock()
	over := ctx.Err() != nil || h.left
	if !over {
		h.become(yielding) // Stop waits for what comes of it
	}
	h.mu.Unlock()
	if over {
		return
	}
	h.resumed.Add(1)
	h.log.Warn("the agent that had taken over has ended; this one goes back to work")
	h.renew() // first, so that who comes now does not take the successor's socket for nobody's
	h.estate.Resume()
	h.mu.Lock()
	h.become(serving)
	h.mu.Unlock()
}

// incumbent is a line to an agent in charge at the socket, or nil if there is none.
func (h *Host) incumbent(ctx context.Context) *line {
	for ctx.Err() == nil && !h.mine() {
		l, err := dial(h.dir)
		if err != nil || l == nil {
			return nil
		}
		if _, err := l.trusted(); err != nil {
			l.close()
			return nil
		}
		hi, err := l.greet(ctx, h.limits.hello, h.config.greeting(watch))
		if err == nil && hi.State != stateYielded {
			return l
		}
		l.close()
		if err != nil && !errors.Is(err, errClosed) {
			return nil
		}
		pause(ctx, again) // its process is ending, or about to find out what we have
	}
	return nil
}

// lifeline is a committed successor's connection.
type lifeline struct {
	ctx  context.Context // done at its end
	calm chan struct{}   // closed when the successor is settled
}

// attach receives from l from here on.
func (h *Host) attach(l *line) *lifeline {
	ctx, cancel := context.WithCancel(context.Background())
	life := &lifeline{ctx: ctx, calm: make(chan struct{})}
	l.until(time.Time{})
	h.running.Go(func() {
		defer cancel()
		calm := life.calm
		for {
			m, err := l.receive()
			m.drop()
			switch {
			case errors.Is(err, errMalformed):
			case err != nil:
				return
			case m.kind == settled && calm != nil:
				close(calm)
				calm = nil
			}
		}
	})
	return life
}

// settled waits until the successor has settled, has died, or limit has passed.
func (life *lifeline) settled(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-life.calm:
	case <-life.ctx.Done():
	case <-t.C:
	}
}

// errPassed: pass has been called after the end of Yield.
var errPassed = errors.New("the hand-over is over")

// passage lets connections through while it is open.
type passage struct {
	line  *line
	limit time.Duration

	mu     sync.Mutex
	closed bool
	passed int
}

func (p *passage) pass(c Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errPassed
	}
	if err := p.line.sendWithin(p.limit, connection, origin{Addr: c.Addr}, c.Read, c.File); err != nil {
		return fmt.Errorf("passing a connection: %w", err)
	}
	p.passed++
	return nil
}

func (p *passage) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}
