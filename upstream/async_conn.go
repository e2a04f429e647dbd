package upstream

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/socket"
)

// maxPendingWrite bounds the bytes that wait for the server to read. The queries of all IDs
// of a connection take at most half of it.
const maxPendingWrite = 1 << 20

// errNotReading is the error of a connection whose server does not read.
var errNotReading = errors.New("the server does not read")

// asyncConn is a TCP connection whose Write never blocks. A goroutine writes what the
// socket does not accept at once; it runs only while data is pending.
type asyncConn struct {
	*net.TCPConn
	reader *bufio.Reader
	raw    syscall.RawConn
	spawn  func(func()) // starts the goroutine
	// ackNow makes Read acknowledge what has arrived before it waits for more. A server
	// with Nagle's algorithm does not send its next reply before that, and Linux delays an
	// acknowledgment by 40 ms if no query carries it. Only the reading goroutine uses it.
	ackNow  bool
	ackFunc func(fd uintptr)

	mu      sync.Mutex
	pending []byte
	// flushing says that the goroutine is running and the only one to write.
	flushing bool
	closed   bool
	// corked makes Write append to held.
	corked bool
	held   []byte
	// writeFunc writes writeMsg and sets written and writeErr. It is a field because
	// creating a function for each call would allocate.
	writeFunc func(fd uintptr) bool
	writeMsg  []byte
	written   int
	writeErr  error
}

// newAsyncConn takes ownership of conn, even if it fails. spawn starts a goroutine.
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
	c.ackFunc = func(fd uintptr) {
		socket.Acknowledge(int(fd))
	}
	return c, nil
}

// Read implements [net.Conn].
func (c *asyncConn) Read(b []byte) (int, error) {
	if c.reader == nil {
		return ackingReader{c}.Read(b)
	}
	return c.reader.Read(b)
}

// ackingReader reads from the socket of an asyncConn.
type ackingReader struct{ c *asyncConn }

func (r ackingReader) Read(b []byte) (int, error) {
	if r.c.ackNow {
		if err := r.c.raw.Control(r.c.ackFunc); err != nil {
			return 0, err
		}
	}
	return r.c.TCPConn.Read(b)
}

// Write implements [net.Conn] without blocking. It copies b if necessary.
func (c *asyncConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(b)
}

// cork makes Write hold back what it gets, until uncork.
func (c *asyncConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = true
}

// uncork writes what was held back, with one system call.
func (c *asyncConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	_, err := c.write(c.held)
	c.held = c.held[:0]
	if cap(c.held) > 2*maxKeptWriteBuf {
		c.held = nil
	}
	return err
}

// write is Write; c is locked.
func (c *asyncConn) write(b []byte) (int, error) {
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.corked {
		c.held = append(c.held, b...)
		return len(b), nil
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

// flush writes the pending data until none is left or the connection fails.
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
			_ = c.Close() // the reader gets the error
			return
		}
	}
}

// Close implements [net.Conn]. No goroutine starts after it.
func (c *asyncConn) Close() error {
	c.mu.Lock()
	c.closed, c.pending = true, nil
	c.mu.Unlock()
	return c.TCPConn.Close()
}

// tryWrite writes as much of msg to fd, a stream socket, as possible without blocking.
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
