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

// envelope is the connection below TLS. Until the handshake is over it waits as any
// connection does. From then on a read never waits, and is only made by the stream's
// reader; a write is one of the stream's outlet, or of package tls itself, which
// makes one at a time.
type envelope struct {
	*net.TCPConn
	c *stream

	open    bool // the handshake is over
	closing bool // nobody waits for the client any more
	fd      int  // is what the reader reads from, as long as it does

	rest    []byte // what is to be written
	attempt func(fd uintptr)
}

// errNotYet ends a read when there is nothing to read. Package tls goes on where it
// was when it is asked again, as after a deadline.
var errNotYet net.Error = notYet{}

type notYet struct{}

func (notYet) Error() string   { return "nothing has come" }
func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }

// Read reads what is there. It ends the connection where a client that sends no query
// keeps the reader at it.
func (e *envelope) Read(b []byte) (int, error) {
	if !e.open {
		return e.TCPConn.Read(b)
	}
	for {
		// Twice the time: a query that comes late is answered, and then it is the end.
		if e.c.leaving.Load() || clock.Now() > time.Duration(e.c.heard.Load())+2*e.c.s.times(e.c.l).idle {
			return 0, io.EOF
		}
		n, errno := transfer(unix.SYS_READ, e.fd, b)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			return 0, errNotYet
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
func (e *envelope) Write(b []byte) (int, error) {
	if !e.open {
		return e.TCPConn.Write(b)
	}
	e.rest = b
	err := e.c.raw.Control(e.attempt)
	if rest := e.rest; err == nil && len(rest) > 0 {
		if e.closing {
			return 0, os.ErrDeadlineExceeded
		}
		err = e.c.out.push(rest)
	}
	e.rest = nil
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// seal puts c under TLS; false if the client doesn't come to terms.
func (c *stream) seal() bool {
	c.below = &envelope{TCPConn: c.conn, c: c}
	c.below.attempt = func(fd uintptr) { c.below.rest = c.below.rest[try(int(fd), c.below.rest):] }
	c.tls = tls.Server(c.below, c.l.routes.Load().Door.Certificate.settings(config.DNSOverTLS))
	if !c.s.shake(c.l, &c.guest, c.tls) {
		return false
	}
	c.below.open = true
	now := clock.Now()
	c.heard.Store(int64(now))
	return c.l.tcp.await(&c.guest, now+c.s.times(c.l).idle)
}

// unseal reads what there is into buf, as read(2) does.
func (c *stream) unseal(fd int, buf []byte) (int, syscall.Errno) {
	c.below.fd = fd
	n, err := c.tls.Read(buf)
	switch {
	case n > 0:
		return n, 0
	case errors.Is(err, errNotYet):
		return 0, unix.EAGAIN
	default:
		return 0, 0
	}
}

// Close ends the connection without waiting for the client.
func (c *stream) Close() error {
	if c.tls == nil {
		return c.conn.Close()
	}
	c.below.closing = true
	if !c.below.open {
		return c.conn.Close()
	}
	return c.tls.Close()
}

// shake makes the handshake of a connection, which may take as long as a query; false
// if there is none.
func (s *Server) shake(l *listener, g *guest, conn *tls.Conn) bool {
	if !l.tcp.grant(g, time.Now().Add(s.times(l).sending)) {
		return false
	}
	err := conn.Handshake()
	switch {
	case err == nil:
		return true
	case g.leaving.Load():
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.cut.Add(1)
		s.unshaken.Add(1)
	case !errors.Is(err, io.EOF): // who only looks whether the port is open has done nothing wrong
		s.unshaken.Add(1)
	}
	return false
}
