package server

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxUnsent limits the bytes of replies that the server holds for all clients together.
// Beyond it, a client that does not read loses its connection. It is 64 replies of 4 KiB
// for each of 64 slow clients, and a tenth of a node agent's usual memory limit.
const maxUnsent = 16 << 20

// connWriter is the writing side of a connection. It is safe for concurrent use. One
// goroutine writes at a time; replies that others enqueue meanwhile are written by that
// goroutine. It copies what it is given: callers may reuse their buffers when a method
// has returned.
type connWriter struct {
	c *tcpConn // only its reader begins queries

	mu      sync.Mutex
	changed sync.Cond // signals the end of a write or of a pending query
	queue   []byte    // replies that are not being written yet; counted in Server.unsent
	writing bool
	blocked bool // the current write waits for the client
	broken  bool // the connection is lost
}

// beginQuery counts one more pending query. If there are limit of them, it returns false
// or, with block set, waits until one ends. It also returns false if the connection is
// lost.
func (o *connWriter) beginQuery(limit int, block bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for block && !o.broken && int(o.c.waiting.Load()) >= limit {
		o.changed.Wait()
	}
	if o.broken || int(o.c.waiting.Load()) >= limit {
		return false
	}
	o.c.waiting.Add(1)
	return true
}

// endQuery ends a query that beginQuery has counted.
func (o *connWriter) endQuery() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.c.waiting.Add(-1) == 0 && o.c.transferring.Load() {
		o.c.l.tcp.wake(&o.c.connState)
	}
	o.changed.Broadcast()
}

// waitIdle blocks until there is no pending query.
func (o *connWriter) waitIdle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.c.waiting.Load() > 0 {
		o.changed.Wait()
	}
}

// write writes frames to the connection, whose descriptor is fd, and blocks until the
// kernel has taken all of them. It returns false if the connection is lost. Only the
// connection's reader calls it.
func (o *connWriter) write(fd int, frames []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && !o.broken {
		o.c.turn.end()
		o.changed.Wait()
	}
	if o.broken {
		return false
	}
	o.writing = true
	o.mu.Unlock()
	err := o.writeFrames(fd, frames)
	o.mu.Lock()
	o.writeQueue(err)
	return !o.broken
}

// writeFrames writes frames that are not counted in Server.unsent yet.
func (o *connWriter) writeFrames(fd int, frames []byte) (err error) {
	owed := &o.c.s.unsent
	if o.c.tls != nil {
		o.c.turn.end()
		owed.Add(int64(len(frames)))
		defer owed.Add(-int64(len(frames)))
		_, err = o.c.tls.Write(frames)
		return err
	}
	if n := writeNow(fd, frames); n < len(frames) {
		o.c.turn.end()
		owed.Add(int64(len(frames)))
		defer owed.Add(-int64(len(frames)))
		err = o.writeBlocking(frames[n:])
	}
	return err
}

// writeBatch writes a part of the queue, which is counted in Server.unsent already.
func (o *connWriter) writeBatch(batch []byte) (err error) {
	if o.c.tls != nil {
		_, err = o.c.tls.Write(batch)
		return err
	}
	n := 0
	_ = o.c.raw.Control(func(fd uintptr) { n = writeNow(int(fd), batch) })
	if n < len(batch) {
		err = o.writeBlocking(batch[n:])
	}
	return err
}

// enqueue writes one reply or leaves it to the goroutine that is writing. It blocks for
// the client only if it writes itself.
func (o *connWriter) enqueue(msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken {
		return
	}
	o.queue = appendFrame(o.queue, msg)
	owed := o.c.s.unsent.Add(int64(lengthPrefix + len(msg)))
	switch {
	case !o.writing:
		o.writing = true
		o.writeQueue(nil)
	case o.blocked && owed > maxUnsent:
		o.abort(true)
	}
}

// writeQueue writes the queue until it is empty and then ends the writing. err is the
// result of the write before it. The caller holds o.mu and has set writing.
func (o *connWriter) writeQueue(err error) {
	for err == nil && len(o.queue) > 0 {
		batch := o.queue
		o.queue = nil
		o.mu.Unlock()
		err = o.writeBatch(batch)
		o.c.s.unsent.Add(-int64(len(batch)))
		o.mu.Lock()
	}
	o.writing = false
	if err != nil && !o.broken {
		o.abort(errors.Is(err, os.ErrDeadlineExceeded))
	}
	o.changed.Broadcast()
}

// abort gives up the connection because the client is slow or gone. The caller holds o.mu
// and has checked that the connection is not broken yet.
func (o *connWriter) abort(slow bool) {
	o.c.s.unsent.Add(-int64(len(o.queue)))
	o.broken, o.queue = true, nil
	if slow && !o.c.closing.Load() {
		o.c.s.cut.Add(1)
	}
	o.c.l.tcp.closeSoon(&o.c.connState)
	o.changed.Broadcast()
}

// writeBlocking writes what the kernel did not take at once. It waits for the client up to
// the write timeout, and not at all while maxUnsent is exceeded or once the server has
// stopped. frames are counted in Server.unsent.
func (o *connWriter) writeBlocking(frames []byte) error {
	if o.c.s.unsent.Load() > maxUnsent {
		return os.ErrDeadlineExceeded
	}
	o.setBlocked(true)
	defer o.setBlocked(false)
	if err := o.c.conn.SetWriteDeadline(time.Now().Add(o.c.l.timeouts().write)); err != nil {
		return err
	}
	stop := context.AfterFunc(o.c.s.ctx, func() { _ = o.c.conn.SetWriteDeadline(past) })
	defer stop()
	_, err := o.c.conn.Write(frames)
	return err
}

// evict ends the connection although it may have pending queries. Their replies are dropped.
func (o *connWriter) evict() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.broken {
		o.abort(false)
	}
}

// isBroken reports whether the connection is lost.
func (o *connWriter) isBroken() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.broken
}

// setBlocked records whether the current write waits for the client.
func (o *connWriter) setBlocked(stuck bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blocked = stuck
}

// writeNow writes as much of frames as the kernel takes without blocking and returns the
// number of bytes, 0 after an error.
func writeNow(fd int, frames []byte) int {
	for {
		switch n, errno := rawIO(unix.SYS_WRITE, fd, frames); errno {
		case unix.EINTR:
		case 0:
			return n
		default:
			return 0
		}
	}
}

// rawIO calls read(2) or write(2) on a non-blocking descriptor; buf must not be empty. It
// bypasses the scheduler: the call does not block, so no other thread has to take over,
// and looking for one costs a tenth of the time of a single query.
func rawIO(call uintptr, fd int, buf []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	return int(n), errno
}

// send writes one message and blocks until the kernel has taken it. It returns false if the connection is
// lost.
func (o *connWriter) send(msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && !o.broken {
		o.changed.Wait()
	}
	if o.broken {
		return false
	}
	o.writing = true
	o.queue = appendFrame(o.queue, msg)
	o.c.s.unsent.Add(int64(lengthPrefix + len(msg)))
	o.writeQueue(nil)
	return !o.broken
}
