package server

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
)

// A connection over TLS (RFC 7858) is a stream like any other: it is read and written
// without waiting, and waits where one without TLS waits, so that all that bounds
// those holds for it, and one on which nothing happens holds no more than its keys. What
// package crypto/tls reads and writes it reads and writes here.

// tlsTransport is the connection below TLS. Until the handshake is over it waits as any
// connection does. From then on a read never waits, and is only made by the stream's
// reader; a write is one of the stream's outlet, or of package tls itself, which
// makes one at a time.
type tlsTransport struct {
	*net.TCPConn
	c *tcpConn

	established bool // the handshake is over
	closing     bool // nobody waits for the client any more
	fd          int  // is what the reader reads from, as long as it does

	unwritten []byte // what is to be written
	tryWrite  func(fd uintptr)
}

// errWouldBlock ends a read when there is nothing to read. Package tls goes on where it
// was when it is asked again, as after a deadline.
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "nothing has come" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// Read reads what is there. It ends the connection where a client that sends no query
// keeps the reader at it.
func (e *tlsTransport) Read(b []byte) (int, error) {
	if !e.established {
		return e.TCPConn.Read(b)
	}
	for {
		// Twice the time: a query that comes late is answered, and then it is the end.
		if e.c.closing.Load() || clock.Now() > time.Duration(e.c.lastQuery.Load())+2*e.c.s.timeouts(e.c.l).idle {
			return 0, io.EOF
		}
		n, errno := rawIO(unix.SYS_READ, e.fd, b)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			return 0, errWouldBlock
		case errno != 0:
			return 0, os.NewSyscallError("read", errno)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes b, and waits for the client to take it as long as a stream does.
func (e *tlsTransport) Write(b []byte) (int, error) {
	if !e.established {
		return e.TCPConn.Write(b)
	}
	e.unwritten = b
	err := e.c.raw.Control(e.tryWrite)
	if rest := e.unwritten; err == nil && len(rest) > 0 {
		if e.closing {
			return 0, os.ErrDeadlineExceeded
		}
		err = e.c.writer.writeBlocking(rest)
	}
	e.unwritten = nil
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// startTLS puts c under TLS; false if the client doesn't come to terms.
func (c *tcpConn) startTLS() bool {
	c.transport = &tlsTransport{TCPConn: c.conn, c: c}
	c.transport.tryWrite = func(fd uintptr) {
		c.transport.unwritten = c.transport.unwritten[writeNow(int(fd), c.transport.unwritten):]
	}
	c.tls = tls.Server(c.transport, c.l.config.Load().Certificate.tlsConfig(config.DNSOverTLS))
	if !c.s.handshake(c.l, &c.connState, c.tls) {
		return false
	}
	c.transport.established = true
	now := clock.Now()
	c.lastQuery.Store(int64(now))
	return c.l.tcp.setReadDeadline(&c.connState, now+c.s.timeouts(c.l).idle)
}

// readTLS reads what there is into buf, as read(2) does.
func (c *tcpConn) readTLS(fd int, buf []byte) (int, syscall.Errno) {
	c.transport.fd = fd
	n, err := c.tls.Read(buf)
	switch {
	case n > 0:
		return n, 0
	case errors.Is(err, errWouldBlock):
		return 0, unix.EAGAIN
	default:
		return 0, 0
	}
}

// Close ends the connection without waiting for the client.
func (c *tcpConn) Close() error {
	if c.tls == nil {
		return c.conn.Close()
	}
	c.transport.closing = true
	if !c.transport.established {
		return c.conn.Close()
	}
	return c.tls.Close()
}

// handshake makes the handshake of a connection, which may take as long as a query; false
// if there is none.
func (s *Server) handshake(l *listener, g *connState, conn *tls.Conn) bool {
	if !l.tcp.setDeadline(g, time.Now().Add(s.timeouts(l).read)) {
		return false
	}
	err := conn.Handshake()
	switch {
	case err == nil:
		return true
	case g.closing.Load():
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.cut.Add(1)
		s.handshakesFailed.Add(1)
	case !errors.Is(err, io.EOF): // who only looks whether the port is open has done nothing wrong
		s.handshakesFailed.Add(1)
	}
	return false
}
