package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Times a TCP client has (RFC 7766, 6.2.3).
const (
	// idleTimeout is between two queries: long enough for a resolver that reuses
	// its connection, short enough that 1024 connections turn over.
	idleTimeout = 10 * time.Second
	// readTimeout is for the rest of a query once its first byte has come.
	readTimeout = 3 * time.Second
	// writeTimeout is for one reply; a client that doesn't read loses its
	// connection.
	writeTimeout = 5 * time.Second
)

// readBuffer is read from a connection at once: some twenty pipelined queries, at
// 2 KiB for each of 1024 connections.
const readBuffer = 2048

// tcpListener is a listening socket and its connections.
type tcpListener struct {
	net.Listener
	places chan struct{}

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

func listenTCP(addr netip.AddrPort, conns int) (*tcpListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error { return sharePort(fd, addr.Addr()) })
	}}
	ln, err := lc.Listen(context.Background(), network("tcp", addr.Addr()), addr.String())
	if err != nil {
		return nil, explain(err, addr)
	}
	return &tcpListener{Listener: ln, places: make(chan struct{}, conns), conns: make(map[net.Conn]struct{})}, nil
}

// close stops listening and reading; replies under way can still be written.
func (t *tcpListener) close() {
	_ = t.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for c := range t.conns {
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
}

// hold registers c, so that close reaches it; false if it came too late.
func (t *tcpListener) hold(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.conns[c] = struct{}{}
	}
	return !t.closed
}

func (t *tcpListener) drop(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
}

// await sets the time until which c may keep the reader waiting; false once the
// listener is closed, whose own deadline must stand.
func (t *tcpListener) await(c net.Conn, d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.closed && c.SetReadDeadline(time.Now().Add(d)) == nil
}

// acceptPause is waited after an accept that failed, so that a process out of
// file descriptors doesn't spin: they come back as queries end.
const acceptPause = 10 * time.Millisecond

func (s *Server) acceptTCP(l *listener) {
	for {
		c, err := l.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(acceptPause)
			continue
		}
		select {
		case l.tcp.places <- struct{}{}:
			s.running.Go(func() {
				defer func() { <-l.tcp.places }()
				s.serveConn(l, c)
			})
		default:
			s.refused.Add(1)
			_ = c.Close()
		}
	}
}

// stream is one TCP connection. Replies are written in the order in which they
// are ready (RFC 7766, 7), one at a time.
type stream struct {
	net.Conn
	in      *bufio.Reader
	writing sync.Mutex
	waiting chan struct{} // places for queries that wait
	pending sync.WaitGroup
}

// write sends one message with its length. A client that doesn't take it in time
// loses its connection.
func (c *stream) write(msg []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	var length [2]byte
	binary.BigEndian.PutUint16(length[:], uint16(len(msg)))
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	bufs := net.Buffers{length[:], msg}
	if _, err := bufs.WriteTo(c.Conn); err != nil {
		_ = c.Close()
	}
}

// serveConn answers the queries of one connection until it ends.
func (s *Server) serveConn(l *listener, conn net.Conn) {
	defer l.tcp.drop(conn)
	if !l.tcp.hold(conn) {
		return
	}
	c := &stream{Conn: conn, in: bufio.NewReaderSize(conn, readBuffer), waiting: make(chan struct{}, s.limits.Pipelined)}
	defer c.pending.Wait()
	var x exchange
	x.via = tcp
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		x.client = a.AddrPort()
	}
	var packet, out []byte
	var err error
	for {
		if packet, err = c.read(l.tcp, packet[:0]); err != nil {
			return
		}
		rt := l.routes.Load()
		x.q.Packet = packet
		x.start = clock.Now()
		msg, at := s.serve(rt, &x, out, tcpLimit)
		switch {
		case at == done && msg != nil:
			c.write(msg)
			out = msg[:0]
		case at == done:
			return // not a query: nothing good will follow
		case s.acquire():
			s.pipeline(c, rt, &x, at)
		default:
			c.write(s.full(&x, wire.MaxMessage))
		}
	}
}

func tcpLimit(*wire.Query) int { return wire.MaxMessage }

// pipeline completes a query that has to wait in a goroutine of its own, while
// the connection is read on.
func (s *Server) pipeline(c *stream, rt *Routes, x *exchange, at step) {
	c.waiting <- struct{}{}
	w := new(exchange)
	x.detach(w, nil, nil)
	c.pending.Go(func() {
		defer s.release()
		defer func() { <-c.waiting }()
		if msg := s.wait(rt, w, at, wire.MaxMessage); msg != nil {
			c.write(msg)
		}
	})
}

// read reads one message into buf, which grows by what has really come, not by
// what the length before it claims.
func (c *stream) read(t *tcpListener, buf []byte) ([]byte, error) {
	if c.in.Buffered() == 0 && !t.await(c.Conn, idleTimeout) {
		return nil, net.ErrClosed
	}
	if _, err := c.in.Peek(1); err != nil {
		return nil, err
	}
	if c.in.Buffered() < 2 && !t.await(c.Conn, readTimeout) {
		return nil, net.ErrClosed
	}
	var length [2]byte
	if _, err := io.ReadFull(c.in, length[:]); err != nil {
		return nil, err
	}
	want := int(binary.BigEndian.Uint16(length[:]))
	if c.in.Buffered() < want && !t.await(c.Conn, readTimeout) {
		return nil, net.ErrClosed
	}
	return appendFrom(buf, c.in, want)
}

// appendFrom appends n bytes of in to buf, a piece at a time.
func appendFrom(buf []byte, in io.Reader, n int) ([]byte, error) {
	for len(buf) < n {
		start := len(buf)
		buf = append(buf, make([]byte, min(n-start, readBuffer))...)
		if _, err := io.ReadFull(in, buf[start:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}
