package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quic-go/quic-go"
)

// silenceCheck is how often a connection with queries in flight is checked for silence.
const silenceCheck = stalledAfter / 2

// doqConn is one connection of a [doqTransport], whose lock guards the fields, from the
// first query that needs it to its end.
type doqConn struct {
	conn   *quic.Conn // nil while connecting
	socket *doqSocket // the same
	// stop ends connecting with an error.
	stop context.CancelCauseFunc

	connection // idleSince is zero while queries are in flight
	// opening says that a query waits for the server to allow another stream. The others
	// wait behind it.
	opening  bool
	answered bool // a reply has arrived
	broken   bool // counted as broken

	// timer calls checkSilence while queries are in flight, if timerSet. silentSince is since
	// when packets have certainly been lost or ignored, zero if the last ones were
	// acknowledged.
	timer       *time.Timer
	timerSet    bool
	silentSince time.Time
}

// usableConn returns the connection for the next query, which may still be connecting; nil
// for none. t is locked.
func (t *doqTransport) usableConn(now time.Time) *doqConn {
	c := t.current
	if c == nil || c.conn == nil {
		return c
	}
	ended := c.conn.Context().Err() != nil
	if ended {
		t.connEnded(c, now)
	}
	if ended || c.expired(&t.connOptions, now) || c.replyOverdue(now) >= closeStalledAfter {
		t.retire(c)
		return nil
	}
	return c
}

// openStreamNow opens a stream for r if there is one to spare and no query waits for one. It
// returns nil otherwise; t is locked.
func (t *doqTransport) openStreamNow(r *doqRequest) *doqConn {
	if !t.waitQueue.empty() {
		return nil
	}
	c := t.usableConn(time.Now())
	if c == nil || c.conn == nil || c.opening {
		return nil
	}
	s, err := c.conn.OpenStream()
	if err != nil {
		return nil
	}
	t.hits.Add(1)
	t.assign(c, r, s)
	return c
}

// acquireStream waits until there is a stream for r, and returns its connection.
func (t *doqTransport) acquireStream(r *doqRequest) (*doqConn, error) {
	ctx, cancel := context.WithDeadline(t.ctx, r.deadline)
	defer cancel()
	if !t.setCancel(r, cancel) {
		return nil, context.Canceled
	}
	for first := true; ; first = false {
		place := t.waitQueue.join(r.clientInFlight) // before checking, so that no wake-up is missed
		c, err := t.tryAcquireStream(ctx, r, first, place)
		switch {
		case c != nil && isConnFailure(err): // while it waited for a stream
			continue
		case c != nil, err != nil:
			return c, err
		}
		if err := t.waitQueue.wait(ctx, place, t.timeoutError); err != nil {
			return nil, err
		}
	}
}

// setCancel sets the function that ends the waiting of r; false if r was canceled.
func (t *doqTransport) setCancel(r *doqRequest, cancel context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.cancel = cancel
	return r.query != nil
}

// tryAcquireStream acquires a stream for r, which waits at place in the queue, and takes it
// out of the queue. It returns nil if another query waits for a stream already, or if there
// is no connection yet: then r has to wait. first says that r has not been counted yet.
func (t *doqTransport) tryAcquireStream(ctx context.Context, r *doqRequest, first bool, place chan error) (*doqConn, error) {
	c, mustWait, err := t.claimStream(r, first)
	if c == nil && err == nil {
		return nil, nil
	}
	t.waitQueue.leave(place)
	if mustWait {
		err = t.awaitStream(ctx, c, r)
	}
	t.waitQueue.wake(1, nil) // there may be another stream
	return c, err
}

// claimStream opens a stream for r on the returned connection. If mustWait is set, the
// caller has to wait for the stream with awaitStream. If there is no connection, it starts
// opening one and returns nil, or the reason of a [connectPause].
func (t *doqTransport) claimStream(r *doqRequest, first bool) (c *doqConn, mustWait bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false, ErrClosed
	}
	now := time.Now()
	if c = t.usableConn(now); c == nil {
		if err := t.pause.err(now); err != nil {
			return nil, false, err
		}
		t.misses.Add(1)
		t.dial(now)
		return nil, false, nil
	}
	if c.conn == nil || c.opening {
		return nil, false, nil
	}
	if first {
		t.hits.Add(1)
	}
	s, err := c.conn.OpenStream()
	if err != nil {
		c.opening = true
		return c, true, nil
	}
	t.assign(c, r, s)
	return c, false, nil
}

// awaitStream waits until the server allows another stream on c. The caller is the only one
// that waits there.
func (t *doqTransport) awaitStream(ctx context.Context, c *doqConn, r *doqRequest) error {
	s, err := c.conn.OpenStreamSync(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	c.opening = false
	if err == nil {
		t.assign(c, r, s)
		return nil
	}
	if ctx.Err() == nil {
		t.connEnded(c, time.Now())
		t.retire(c)
		return err
	}
	return t.timeoutErrorLocked(ctx)
}

// timeoutError returns the error of a query that got no stream in time. The server is at
// fault unless it is busy with other queries.
func (t *doqTransport) timeoutError(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.timeoutErrorLocked(ctx)
}

func (t *doqTransport) timeoutErrorLocked(ctx context.Context) error {
	c := t.current
	if c != nil && c.inFlight > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errNoCapacity
	}
	return ctx.Err()
}

// assign assigns the stream s of c to r; t is locked. If r was canceled meanwhile, nothing
// is sent.
func (t *doqTransport) assign(c *doqConn, r *doqRequest, s *quic.Stream) {
	r.stream = s
	if r.query == nil {
		abort(s)
	}
	c.begin(time.Now())
	c.idleSince = time.Time{}
	if !c.timerSet {
		c.timerSet = true
		c.timer.Reset(silenceCheck)
	}
}

// release ends the stream of r on c, which has returned err or a reply.
func (t *doqTransport) release(c *doqConn, r *doqRequest, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		abort(r.stream)
	}
	r.stream = nil
	c.inFlight--
	if c.inFlight == 0 {
		c.owedSince = time.Time{}
	}
	switch {
	case errors.Is(err, errDoQProtocol):
		t.unexpected.Add(1)
		t.closeConn(c, doqProtocolError, err)
	case isConnFailure(err):
		t.countBroken(c)
		t.connEnded(c, time.Now())
		t.retire(c)
	}
	if c.inFlight > 0 {
		return
	}
	c.idleSince = time.Now()
	if c.retired || t.expire <= 0 {
		t.closeConn(c, doqNoError, nil)
	}
}

// countBroken counts c, whose queries have failed with it, unless the agent has closed it; t
// is locked.
func (t *doqTransport) countBroken(c *doqConn) {
	if !c.closed && !c.broken {
		c.broken = true
		t.brokenConns.Add(1)
	}
}

// connEnded begins a pause if c, which the server has ended, was needed and never brought a
// reply; t is locked.
func (t *doqTransport) connEnded(c *doqConn, now time.Time) {
	if !c.retired && !c.closed && !c.answered && c.idleSince.IsZero() {
		t.pause.start(errEndedUnanswered, now)
	}
}

// retire makes c take no more queries, and closes it once none is in flight; t is locked.
func (t *doqTransport) retire(c *doqConn) {
	c.retired = true
	if t.current == c {
		t.current = nil
		t.waitQueue.wake(1, nil) // it opens another one
	}
	if c.inFlight == 0 {
		t.closeConn(c, doqNoError, nil)
	}
}

// closeConn closes c with the given code, or ends connecting with err; t is locked. Queries
// in flight are sent again or fail.
func (t *doqTransport) closeConn(c *doqConn, code quic.ApplicationErrorCode, err error) {
	if c.closed {
		return
	}
	if errors.Is(err, errDoQProtocol) {
		t.countBroken(c)
	}
	c.closed = true
	c.timer.Stop()
	delete(t.live, c)
	if t.current == c {
		t.current = nil
		t.waitQueue.wake(1, nil)
	}
	if c.conn == nil {
		c.stop(err)
		return
	}
	t.tasks.Go(func() { _ = c.conn.CloseWithError(code, "") })
}

// dial starts opening the connection for the next queries; t is locked and not closed. If
// another one still drains beside the last one, it is closed.
func (t *doqTransport) dial(now time.Time) {
	for len(t.live) >= maxConnsDoQ {
		var oldest *doqConn
		for c := range t.live {
			if oldest == nil || c.openedAt.Before(oldest.openedAt) {
				oldest = c
			}
		}
		t.closeConn(oldest, doqNoError, errConnStuck)
	}
	c := &doqConn{connection: connection{openedAt: now}}
	c.timer = time.AfterFunc(time.Hour, func() { t.checkSilence(c) })
	c.timer.Stop()
	t.current = c
	t.live[c] = struct{}{}
	ctx, stop := context.WithCancelCause(t.ctx)
	c.stop = stop
	t.tasks.Go(func() {
		defer stop(nil)
		t.runConn(ctx, c)
	})
}

// runConn is the goroutine of c, from connecting to its end.
func (t *doqTransport) runConn(ctx context.Context, c *doqConn) {
	ctx, cancel := context.WithTimeout(ctx, t.connectTimeout)
	defer cancel()
	conn, socket, err := t.connect(ctx, c)
	if err != nil {
		t.waitQueue.wake(-1, t.connectFailed(c, err))
		return
	}
	defer func() { _ = socket.Close() }()
	t.connected(c, conn, socket)
	t.waitQueue.wake(1, nil)
	<-conn.Context().Done()
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.inFlight > 0 {
		t.countBroken(c)
	}
	t.connEnded(c, time.Now())
	t.retire(c)
}

// connect opens a socket and the QUIC connection on it.
func (t *doqTransport) connect(ctx context.Context, c *doqConn) (*quic.Conn, *doqSocket, error) {
	s, err := openDoQSocket(ctx, t.source, t.addr)
	if err != nil {
		return nil, nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.onError = func(err error) {
		fail(localError{err}) // while connecting
		t.handleSocketError(c)
	}
	conn, err := quic.Dial(ctx, s, s.to, t.tls, t.config) // not DialEarly, which sends 0-RTT data
	if err != nil {
		_ = s.Close()
		return nil, nil, fmt.Errorf("QUIC handshake with %s: %w", t.tls.ServerName, readableError(err))
	}
	return conn, s, nil
}

// connected makes c, which may be closed meanwhile, ready for queries.
func (t *doqTransport) connected(c *doqConn, conn *quic.Conn, s *doqSocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.conn, c.socket = conn, s
	noneWaits := t.waitQueue.empty()
	if noneWaits {
		c.idleSince = time.Now()
	}
	switch {
	case c.closed:
		t.tasks.Go(func() { _ = conn.CloseWithError(doqNoError, "") })
		return
	case noneWaits && t.expire <= 0:
		t.closeConn(c, doqNoError, nil)
		return
	}
	for old := range t.live {
		if old != c && !old.silentSince.IsZero() { // it still hears nothing, and the server is up
			t.closeConn(old, doqNoError, errConnStuck)
		}
	}
}

// connectFailed begins a pause after connecting c failed with err. It returns the error for the
// waiting queries; nil if c was closed by the agent.
func (t *doqTransport) connectFailed(c *doqConn, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	closed := c.closed
	c.closed = true
	delete(t.live, c)
	if t.current == c {
		t.current = nil
	}
	if closed {
		return nil
	}
	t.brokenConns.Add(1)
	err = fmt.Errorf("connecting: %w", err)
	t.pause.start(err, time.Now())
	return err
}

// handleSocketError handles an error of the socket of c, mostly because of an ICMP message.
// Anyone can forge one, so that the queries in flight continue; further ones use another
// connection, whose handshake shows whether the server is there.
func (t *doqTransport) handleSocketError(c *doqConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || c.conn == nil || c.closed || c.retired {
		return
	}
	t.replace(c)
}

// replace opens another connection instead of c, or closes c if there is one; t is locked
// and not closed.
func (t *doqTransport) replace(c *doqConn) {
	switch now := t.current; {
	case now == c:
		t.misses.Add(1)
		t.current = nil
		t.retire(c)
		t.dial(time.Now())
	case now != nil && now.conn != nil:
		t.closeConn(c, doqNoError, errConnStuck)
	}
}

// checkSilence is called by the timer of c. It replaces c if the server does not even
// acknowledge packets: it has restarted, or the path is broken.
func (t *doqTransport) checkSilence(c *doqConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.timerSet = false
	if c.closed || t.closed || c.inFlight == 0 {
		c.silentSince = time.Time{}
		return
	}
	c.timerSet = true
	c.timer.Reset(silenceCheck)
	now := time.Now()
	switch {
	case c.socket.unanswered.Load() < unansweredPackets:
		c.silentSince = time.Time{}
	case c.silentSince.IsZero():
		c.silentSince = now
	case now.Sub(c.silentSince) >= max(stalledAfter, 2*c.conn.ConnectionStats().SmoothedRTT):
		t.replace(c)
	}
}

// closeIdle is [transport.closeIdle].
func (t *doqTransport) closeIdle(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.usableConn(now)
}
