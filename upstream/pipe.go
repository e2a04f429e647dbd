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

// maxBehind is the bytes that wait for a connection's server to read. The queries of
// all of its IDs are half of that, at most; twice is what nobody should hold for
// a server that does not read.
const maxBehind = 1 << 20

// errBehind is the end of a connection whose server does not read.
var errBehind = errors.New("the server does not read what it is sent")

// pipe is a TCP connection whose Write never waits for the network: what the socket
// does not take at once is written behind, by a goroutine that is there as long as
// something is left.
type pipe struct {
	*net.TCPConn
	in    *bufio.Reader
	raw   syscall.RawConn
	spawn func(func()) // starts the goroutine

	mu     sync.Mutex
	behind []byte
	// lagging says that the goroutine is there, and writes.
	lagging bool
	closed  bool
	// try writes msg to the socket. It is made once, since a function that is made to
	// be called by an interface is allocated; the others are its results.
	try func(fd uintptr) bool
	msg []byte
	n   int
	err error
}

// newPipe takes conn over, also with an error.
func newPipe(conn *net.TCPConn, spawn func(func())) (*pipe, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	p := &pipe{TCPConn: conn, raw: raw, spawn: spawn}
	p.try = func(fd uintptr) bool {
		p.n, p.err = offer(fd, p.msg)
		return true
	}
	return p, nil
}

// buffered has p read more than is asked for: TLS asks for little at a time.
func (p *pipe) buffered() { p.in = bufio.NewReaderSize(p.TCPConn, readRoom) }

// Read is [net.Conn.Read].
func (p *pipe) Read(b []byte) (int, error) {
	if p.in == nil {
		return p.TCPConn.Read(b)
	}
	return p.in.Read(b)
}

// Write is [net.Conn.Write], but does not wait. b is copied.
func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, net.ErrClosed
	}
	left := b
	if !p.lagging {
		p.msg, p.n, p.err = b, 0, nil
		if err := p.raw.Write(p.try); err != nil {
			return 0, err
		}
		p.msg = nil
		if p.err != nil {
			return 0, p.err
		}
		if left = b[p.n:]; len(left) == 0 {
			return len(b), nil
		}
	}
	if len(p.behind)+len(left) > maxBehind {
		return 0, errBehind
	}
	p.behind = append(p.behind, left...)
	if !p.lagging {
		p.lagging = true
		p.spawn(p.catchUp)
	}
	return len(b), nil
}

// catchUp writes what was left, until nothing is or the connection ends.
func (p *pipe) catchUp() {
	for {
		p.mu.Lock()
		b := p.behind
		p.behind = nil
		p.lagging = len(b) > 0
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
func (p *pipe) Close() error {
	p.mu.Lock()
	p.closed, p.behind = true, nil
	p.mu.Unlock()
	return p.TCPConn.Close()
}

// offer writes what fd, a stream socket, takes of msg at once.
func offer(fd uintptr, msg []byte) (n int, err error) {
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
