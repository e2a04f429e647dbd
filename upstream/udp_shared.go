package upstream

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/socket"
)

// sharedSocket is the part of a udpSocket whose replies are read by a goroutine that also reads clients' queries.
type sharedSocket struct {
	set       *pollset.Set
	transport *udpTransport

	mu sync.Mutex
	fd int // -1 when it is closed
}

// dialShared is dial for a query whose reply is read by the goroutine that reads q.readBy.
func (t *udpTransport) dialShared(q *query) (*udpSocket, error) {
	fd, local, err := socket.DialUDP(t.source, t.remote.AddrPort())
	if err != nil {
		return nil, err
	}
	enableErrorQueue(uintptr(fd))
	s := &udpSocket{local: unmapped(local), openedAt: time.Now(), total: &t.inFlight, sharedSocket: &sharedSocket{set: q.readBy, transport: t, fd: fd}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		s.close()
		return nil, ErrClosed
	}
	t.addSocket(s, q)
	return s, nil
}

// expect says that n more replies are expected on s, whose part c is; the lock of the transport is held.
func (c *sharedSocket) expect(s *udpSocket, n int) {
	c.set.Expect(n)
	switch {
	case n > 0 && s.inFlight == n:
		c.set.Add(s)
	case s.inFlight == 0:
		c.set.Remove(s)
	}
}

// withFD calls use with the descriptor, which stays open meanwhile, unless it is closed.
func (c *sharedSocket) withFD(use func(fd uintptr)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		use(uintptr(c.fd))
	}
}

func (c *sharedSocket) close() {
	c.withFD(func(fd uintptr) {
		_ = unix.Close(int(fd))
		c.fd = -1 // under the same lock: another file may have the number next
	})
}

// FD implements [pollset.Socket].
func (c *sharedSocket) FD() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd
}

// ReadReplies implements [pollset.Socket].
func (s *udpSocket) ReadReplies() (flush func()) {
	t := s.transport
	b := t.batches.Get().(*batch)
	defer t.batches.Put(b)
	var n int
	var err error
	s.withFD(func(fd uintptr) { n, err = b.read(fd) })
	if n > 0 {
		_, flush = t.deliver(s, b, n)
	}
	switch {
	case err == nil:
	case isRecoverable(err):
		t.handleErrorQueue(s)
	default:
		t.mu.Lock()
		defer t.mu.Unlock()
		s.failAll(err)
		t.retire(s)
	}
	return flush
}

// wakeShared makes the timer for sockets in sets fire at the given time at the latest; t is locked. It is set rarely, because all queries have
// the same timeout.
func (t *udpTransport) wakeShared(at time.Time) {
	if !t.timerAt.IsZero() && !at.Before(t.timerAt) {
		return
	}
	t.timerAt = at
	if d := time.Until(at); t.timer == nil {
		t.timer = time.AfterFunc(d, t.expireShared)
	} else {
		t.timer.Reset(d)
	}
}

// expireShared completes the queries on sockets in sets whose deadlines have passed.
func (t *udpTransport) expireShared() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timerAt = time.Time{}
	now := time.Now()
	for s := range t.live {
		if s.sharedSocket == nil {
			continue
		}
		if next := s.expire(now); !next.IsZero() {
			t.wakeShared(next)
		}
		t.closeFinished(s)
	}
}
