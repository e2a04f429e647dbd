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

// DNS over TLS (RFC 7858) uses the same tcpConn as DNS over TCP. tlsTransport lies below
// package crypto/tls and never blocks a read, so the connection waits in the same place
// with and without TLS and the same limits apply. An idle connection holds its keys and
// no buffers.

// tlsTransport is the TCP connection below TLS. Reads and writes block during the
// handshake. After it, reads never block, and only the connection's reader makes them;
// writes come one at a time from the connection's writer or from crypto/tls itself.
type tlsTransport struct {
	*net.TCPConn
	c *tcpConn

	established bool // the handshake has completed
	closing     bool // do not wait for the client any more
	fd          int  // valid during readTLS

	unwritten []byte // what the current Write still has to write
	tryWrite  func(fd uintptr)
}

// errWouldBlock ends a read when no data is available. It is a timeout, after which
// crypto/tls can continue with the next read.
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no data available" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// Read returns the available data. It ends the connection if its client keeps the reader
// busy without sending a query.
func (e *tlsTransport) Read(b []byte) (int, error) {
	if !e.established {
		return e.TCPConn.Read(b)
	}
	for {
		// Twice the timeout: a late query is still answered, then idleTooLong ends the connection.
		if e.c.closing.Load() || clock.Now() > time.Duration(e.c.lastQuery.Load())+2*e.c.l.timeouts().idle {
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

// Write writes b and waits for the client up to the write timeout.
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

// startTLS performs the TLS handshake. It returns false if that fails.
func (c *tcpConn) startTLS() bool {
	c.transport = &tlsTransport{TCPConn: c.conn, c: c}
	c.transport.tryWrite = func(fd uintptr) {
		c.transport.unwritten = c.transport.unwritten[writeNow(int(fd), c.transport.unwritten):]
	}
	c.tls = tls.Server(c.transport, c.l.config.Load().Certificate.tlsConfig(config.DNSOverTLS))
	if !c.l.handshake(&c.connState, c.tls) {
		return false
	}
	c.transport.established = true
	now := clock.Now()
	c.lastQuery.Store(int64(now))
	return c.l.tcp.setReadDeadline(&c.connState, now+c.l.timeouts().idle)
}

// readTLS decrypts available data into buf, with the results of read(2).
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

// Close closes the connection without waiting for the client.
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
