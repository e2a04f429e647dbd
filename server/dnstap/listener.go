package dnstap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxCollectors bounds the connections to a listener, those that have not completed the handshake
	// included. Each collector has a fourth of the memory that one would have that is dialed.
	maxCollectors = 4
	// listenRetry is the delay after an attempt to listen that has failed.
	listenRetry = 100 * time.Millisecond
	// inUseGrace is for how long another process may have the address before it is logged: the
	// predecessor keeps it until it hands over, and the configuration before a reload for a moment.
	inUseGrace = 10 * time.Second
)

// listener accepts collectors. All of them get each message, and each has a queue of its own, so that
// a slow one loses messages and the others do not.
type listener struct {
	tap       *Tap
	connected atomic.Int32 // len(queues)

	mu     sync.Mutex
	conns  int // accepted and not closed yet
	queues map[*queue]struct{}
	// suspended says that another process has the address. stop ends listening, and is nil while
	// nothing listens. resumed is closed when suspended ends.
	suspended bool
	stop      context.CancelFunc
	resumed   chan struct{}
}

// send queues m for each collector.
func (l *listener) send(m *Message) {
	if l.connected.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for q := range l.queues {
		q.send(m)
	}
}

// setSuspended is [Tap.Suspend] and [Tap.Resume].
func (l *listener) setSuspended(suspended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.suspended == suspended {
		return
	}
	l.suspended = suspended
	if !suspended {
		close(l.resumed)
		l.resumed = make(chan struct{})
	} else if l.stop != nil {
		l.stop()
	}
}

// begin waits until l is not suspended, and returns a context that ends when it is. It is false if ctx
// ends before.
func (l *listener) begin(ctx context.Context) (context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.suspended && ctx.Err() == nil {
		resumed := l.resumed
		l.mu.Unlock()
		select {
		case <-resumed:
		case <-ctx.Done():
		}
		l.mu.Lock()
	}
	ctx, l.stop = context.WithCancel(ctx)
	return ctx, ctx.Err() == nil
}

// run listens until ctx ends, except while l is suspended.
func (l *listener) run(ctx context.Context) {
	t := l.tap
	for {
		active, ok := l.begin(ctx)
		if !ok {
			return
		}
		ln, ok := l.awaitAddress(active)
		if !ok {
			continue
		}
		t.outages.Recover("endpoint", t.Endpoint())
		t.log.Info("listening for collectors", "endpoint", t.Endpoint())
		l.accept(active, ln)
	}
}

// awaitAddress listens, and tries again until it can. It is false if ctx ends before.
func (l *listener) awaitAddress(ctx context.Context) (net.Listener, bool) {
	t, began := l.tap, time.Now()
	for {
		ln, err := l.listen(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = ln.Close()
			}
			return nil, false
		case err == nil:
			return ln, true
		case !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) >= inUseGrace:
			t.outages.Fail(err, "endpoint", t.Endpoint())
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

// listen listens at the address. The socket of a process that has died gives way.
func (l *listener) listen(ctx context.Context) (net.Listener, error) {
	network, address := "tcp", l.tap.cfg.Address
	if l.tap.cfg.Network == "unix" {
		network = "unix"
		if err := removeStale(ctx, address); err != nil {
			return nil, err
		}
	}
	return new(net.ListenConfig).Listen(ctx, network, address)
}

// removeStale removes the socket at path if no process listens there.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket; remove it, or choose another path", path)
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another process listens at %s: %w", path, syscall.EADDRINUSE)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return err
}

// accept serves collectors until ctx ends. It closes ln before it ends their streams, so that a collector
// that reconnects when its stream ends does not reach this listener.
func (l *listener) accept(ctx context.Context, ln net.Listener) {
	collecting, end := context.WithCancel(context.WithoutCancel(ctx))
	var collectors sync.WaitGroup
	defer collectors.Wait()
	context.AfterFunc(ctx, func() {
		_ = ln.Close()
		end()
	})
	for ctx.Err() == nil {
		conn, err := ln.Accept()
		if err != nil {
			select { // it may be out of file descriptors
			case <-ctx.Done():
			case <-time.After(listenRetry):
			}
			continue
		}
		if !l.admit() {
			_ = conn.Close()
			continue
		}
		collectors.Go(func() {
			defer l.release()
			defer conn.Close()
			l.collect(collecting, conn)
		})
	}
}

// admit counts a connection; false if there are too many.
func (l *listener) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == maxCollectors {
		l.tap.log.Debug("collector refused: there are too many", "endpoint", l.tap.Endpoint())
		return false
	}
	l.conns++
	return true
}

func (l *listener) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns--
}

// collect sends messages to the collector at conn until it goes or ctx ends.
func (l *listener) collect(ctx context.Context, conn net.Conn) {
	t := l.tap
	q := newQueue(t.cfg, maxCollectors, t.commonFields, &t.dropped)
	stream, err := l.secure(ctx, conn)
	var lost int
	if err == nil {
		lost, err = q.serve(ctx, stream, func() {
			l.add(&q)
			t.log.Debug("collector connected", "endpoint", t.Endpoint(), "address", conn.RemoteAddr())
		})
	}
	l.remove(&q)
	_, left := q.swapBuffers(nil)
	t.dropped.Add(uint64(lost + left))
	t.log.Debug("collector disconnected", "endpoint", t.Endpoint(), "address", conn.RemoteAddr(), "err", err)
}

// secure returns conn, or the TLS connection on it after its handshake.
func (l *listener) secure(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if c, ok := conn.(*net.TCPConn); ok && l.tap.cfg.WriteBuffer > 0 {
		_ = c.SetWriteBuffer(l.tap.cfg.WriteBuffer) // the kernel limits it
	}
	if l.tap.cfg.Network != "tls" {
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c := tls.Server(conn, l.tap.TLS())
	return c, c.HandshakeContext(ctx)
}

// add makes q get messages.
func (l *listener) add(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queues[q] = struct{}{}
	l.connected.Store(int32(len(l.queues)))
}

// remove makes q get no more messages.
func (l *listener) remove(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.queues, q)
	l.connected.Store(int32(len(l.queues)))
}
