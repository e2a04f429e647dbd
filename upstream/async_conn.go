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
	p := &asyncConn{TCPConn: conn, raw: raw, spawn: spawn}
	p.writeFunc = func(fd uintptr) bool {
		p.written, p.writeErr = tryWrite(fd, p.writeMsg)
		return true
	}
	return p, nil
}

// bufferReads has p read more than is asked for: TLS asks for little at a time.
func (p *asyncConn) bufferReads() { p.reader = bufio.NewReaderSize(p.TCPConn, readBufSize) }

// Read is [net.Conn.Read].
func (p *asyncConn) Read(b []byte) (int, error) {
	if p.reader == nil {
		return p.TCPConn.Read(b)
	}
	return p.reader.Read(b)
}

// Write is [net.Conn.Write], but does not wait. b is copied.
func (p *asyncConn) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, net.ErrClosed
	}
	left := b
	if !p.flushing {
		p.writeMsg, p.written, p.writeErr = b, 0, nil
		if err := p.raw.Write(p.writeFunc); err != nil {
			return 0, err
		}
		p.writeMsg = nil
		if p.writeErr != nil {
			return 0, p.writeErr
		}
		if left = b[p.written:]; len(left) == 0 {
			return len(b), nil
		}
	}
	if len(p.pending)+len(left) > maxPendingWrite {
		return 0, errNotReading
	}
	p.pending = append(p.pending, left...)
	if !p.flushing {
		p.flushing = true
		p.spawn(p.flush)
	}
	return len(b), nil
}

// flush writes what was left, until nothing is or the connection ends.
func (p *asyncConn) flush() {
	for {
		p.mu.Lock()
		b := p.pending
		p.pending = nil
		p.flushing = len(b) > 0
		p.mu.Unlock()
		if len(b) == 0 {
			return
		}
		if _, err := p.TCPConn.Write(b); err != nil {
			_ = p.Close() // whoever reads has the error
			return
		}
	}
}

// Close is [net.Conn.Close]. After it no goroutine begins.
func (p *asyncConn) Close() error {
	p.mu.Lock()
	p.closed, p.pending = true, nil
	p.mu.Unlock()
	return p.TCPConn.Close()
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
