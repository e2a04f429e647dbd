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

// maxUnsent bounds the bytes of replies that all clients together may leave with the
// server: those that find their client not reading while there are more of them
// cost it its connection. It is 64 replies of 4 KiB, all that a client may have
// waited for, for each of 64 clients that are slow for a moment. Twice as much
// would be a fifth of what a node agent is usually given.
const maxUnsent = 16 << 20

// connWriter is the writing side of a connection. It is safe for concurrent use. One
// goroutine writes at a time; what others put in the meantime it writes as well.
type connWriter struct {
	c *tcpConn // whose queries that wait only its reader adds to

	mu      sync.Mutex
	changed sync.Cond // the writing, or a query's waiting, is over
	queue   []byte    // replies that nobody has begun to write; counted in Server.owed
	writing bool
	blocked bool // the client does not take what is being written
	broken  bool // nothing can be written any more
}

// beginQuery counts one more query that waits. If limit of them do, it is false, or with
// block waits until one is done; it is also false if there is nobody to reply to.
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

// endQuery takes back a begin.
func (o *connWriter) endQuery() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.c.waiting.Add(-1) == 0 && o.c.transferring.Load() {
		o.c.l.tcp.wake(&o.c.connState)
	}
	o.changed.Broadcast()
}

// waitIdle waits until no query waits any more.
func (o *connWriter) waitIdle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.c.waiting.Load() > 0 {
		o.changed.Wait()
	}
}

// write writes frames to the connection, whose descriptor is fd, and returns when
// the kernel has all of them; false if the connection is lost. The caller is the
// connection's reader.
func (o *connWriter) write(fd int, frames []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && !o.broken {
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

// writeFrames writes frames of the reader's.
func (o *connWriter) writeFrames(fd int, frames []byte) (err error) {
	owed := &o.c.s.unsent
	if o.c.tls != nil {
		owed.Add(int64(len(frames)))
		defer owed.Add(-int64(len(frames)))
		_, err = o.c.tls.Write(frames)
		return err
	}
	if n := writeNow(fd, frames); n < len(frames) {
		owed.Add(int64(len(frames)))
		defer owed.Add(-int64(len(frames)))
		err = o.writeBlocking(frames[n:])
	}
	return err
}

// writeBatch writes a batch of the queue, which is counted already.
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

// enqueue writes one reply, or leaves it to the goroutine that is writing. It waits for
// the client only if it is the one that writes.
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

// writeQueue writes the queue until nothing is left in it, and ends the writing. err is
// what came of the write before it. The caller holds o.mu, and has set writing.
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

// abort gives up a client that is too slow, or gone. The caller holds o.mu, and
// has seen that it isn't broken.
func (o *connWriter) abort(slow bool) {
	o.c.s.unsent.Add(-int64(len(o.queue)))
	o.broken, o.queue = true, nil
	if slow && !o.c.closing.Load() {
		o.c.s.cut.Add(1)
	}
	o.c.l.tcp.closeSoon(&o.c.connState)
	o.changed.Broadcast()
}

// writeBlocking writes what the kernel did not take at once, waiting for the client if the
// server can afford it, and as long as it runs. frames are counted in Server.owed.
func (o *connWriter) writeBlocking(frames []byte) error {
	if o.c.s.unsent.Load() > maxUnsent {
		return os.ErrDeadlineExceeded
	}
	o.setBlocked(true)
	defer o.setBlocked(false)
	if err := o.c.conn.SetWriteDeadline(time.Now().Add(o.c.s.timeouts(o.c.l).write)); err != nil {
		return err
	}
	stop := context.AfterFunc(o.c.s.ctx, func() { _ = o.c.conn.SetWriteDeadline(past) })
	defer stop()
	_, err := o.c.conn.Write(frames)
	return err
}

func (o *connWriter) setBlocked(stuck bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blocked = stuck
}

// writeNow writes as much of frames as the kernel takes at once, and gives its length.
// After an error that is nothing.
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

// rawIO is read(2) or write(2) on a descriptor that doesn't block; buf is not
// empty. The scheduler isn't told: a call that waits for nobody needs no other
// thread to take over its work, and looking for such a thread costs a query that
// comes alone a tenth of its time.
func rawIO(call uintptr, fd int, buf []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	return int(n), errno
}
