package upstream

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPendingWrite is the bytes that wait for a connection's server to read. The queries of
// all of its IDs are half of that, at most; twice is what nobody should hold for
// a server that does not read.
const maxPendingWrite = 1 << 20

// errNotReading is the end of a connection whose server does not read.
var errNotReading = errors.New("the server does not read what it is sent")

// asyncConn is a TCP connection whose Write never waits for the network: what the socket
// does not take at once is written behind, by a goroutine that is there as long as
// something is left.
type asyncConn struct {
	*net.TCPConn
	reader *bufio.Reader
	raw    syscall.RawConn
	spawn  func(func()) // starts the goroutine

	mu      sync.Mutex
	pending []byte
	// flushing says that the goroutine is there, and writes.
	flushing bool
	closed   bool
	// writeFunc writes msg to the socket. It is made once, since a function that is made to
	// be called by an interface is allocated; the others are its results.
	writeFunc func(fd uintptr) bool
	writeMsg  []byte
	written   int
	writeErr  error
}

// newAsyncConn takes conn over, also with an error.
func newAsyncConn(conn *net.TCPConn, spawn func(func())) (*asyncConn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &asyncConn{TCPConn: conn, raw: raw, spawn: spawn}
	c.writeFunc = func(fd uintptr) bool {
		c.written, c.writeErr = tryWrite(fd, c.writeMsg)
		return true
	}
	return c, nil
}

// bufferReads has p read more than is asked for: TLS asks for little at a time.
func (c *asyncConn) bufferReads() { c.reader = bufio.NewReaderSize(c.TCPConn, readBufSize) }

// Read is [net.Conn.Read].
func (c *asyncConn) Read(b []byte) (int, error) {
	if c.reader == nil {
		return c.TCPConn.Read(b)
	}
	return c.reader.Read(b)
}

// Write is [net.Conn.Write], but does not wait. b is copied.
func (c *asyncConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	left := b
	if !c.flushing {
		c.writeMsg, c.written, c.writeErr = b, 0, nil
		if err := c.raw.Write(c.writeFunc); err != nil {
			return 0, err
		}
		c.writeMsg = nil
		if c.writeErr != nil {
			return 0, c.writeErr
		}
		if left = b[c.written:]; len(left) == 0 {
			return len(b), nil
		}
	}
	if len(c.pending)+len(left) > maxPendingWrite {
		return 0, errNotReading
	}
	c.pending = append(c.pending, left...)
	if !c.flushing {
		c.flushing = true
		c.spawn(c.flush)
	}
	return len(b), nil
}

// flush writes what was left, until nothing is or the connection ends.
func (c *asyncConn) flush() {
	for {
		c.mu.Lock()
		b := c.pending
		c.pending = nil
		c.flushing = len(b) > 0
		c.mu.Unlock()
		if len(b) == 0 {
			return
		}
		if _, err := c.TCPConn.Write(b); err != nil {
			_ = c.Close() // whoever reads has the error
			return
		}
	}
}

// Close is [net.Conn.Close]. After it no goroutine begins.
func (c *asyncConn) Close() error {
	c.mu.Lock()
	c.closed, c.pending = true, nil
	c.mu.Unlock()
	return c.TCPConn.Close()
}

// tryWrite writes what fd, a stream socket, takes of msg at once.
func tryWrite(fd uintptr, msg []byte) (n int, err error) {
	for len(msg) > n {
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&msg[n])), uintptr(len(msg)-n), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			n += int(sent)
		case unix.EINTR:
		case unix.EAGAIN:
			return n, nil
		default:
			return n, errno
		}
	}
	return n, nil
}
