// Package pollset lets the goroutine that reads clients' queries from a socket read the replies of upstreams, too. While
// replies are expected it waits for both with one ppoll(2), so a query that is forwarded wakes one thread twice. If
// other goroutines read the replies, it wakes the runtime's network poller and another thread as well, which costs more than the
// rest of the query.
package pollset

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket is a socket from which replies are expected.
type Socket interface {
	// FD returns the descriptor. It may be closed at any time, and mean another file afterwards.
	FD() int
	// ReadReplies reads what has arrived, without blocking, and does nothing if the socket is closed. flush, unless it
	// is nil, is to be called when the replies on all sockets are read.
	ReadReplies() (flush func())
}

// Timer is something that has to be done at certain times while replies are expected.
type Timer interface {
	// Next returns when; the zero Time means never.
	Next() time.Time
	// Fire does it, if it is due at now, and reports whether goroutines may have been started for it. It does not block.
	Fire(now time.Time) bool
}

// maxSockets is how many sockets a set has at most: ppoll(2) looks at each of them in every wait, which takes 20 ns. An upstream that
// answers needs no more than half of them.
const maxSockets = 64

// Set is the sockets from which replies are expected that one goroutine reads. It is safe for concurrent use; sockets are
// added by the goroutine that reads them only, because others would not wake it.
type Set struct {
	mu       sync.Mutex
	sockets  []Socket
	timers   []Timer
	expected atomic.Int64
	closed   atomic.Bool
	woken    atomic.Bool
	reading  sync.Mutex // held while sockets are read
}

// Close says that no socket will be added any more.
func (s *Set) Close() { s.closed.Store(true) }

// Closed reports whether Close has been called: what is kept for s can go then.
func (s *Set) Closed() bool { return s.closed.Load() }

// Wake says that a reply which was read has woken, or started, another goroutine.
func (s *Set) Wake() { s.woken.Store(true) }

// Add adds member, which is not in the set.
func (s *Set) Add(member Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets = append(s.sockets, member)
}

// Full reports whether no more sockets should be added.
func (s *Set) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sockets) >= maxSockets
}

// Remove removes member, which is in the set.
func (s *Set) Remove(member Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.sockets, member)
	s.sockets = slices.Delete(s.sockets, i, i+1)
}

// AddTimer adds t, which is asked for its next time before each wait.
func (s *Set) AddTimer(t Timer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timers = append(s.timers, t)
}

// RemoveTimer removes t.
func (s *Set) RemoveTimer(t Timer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timers = slices.DeleteFunc(s.timers, func(other Timer) bool { return other == t })
}

// Expect adds n to the number of replies that are expected.
func (s *Set) Expect(n int) { s.expected.Add(int64(n)) }

// Expected returns the number of replies that are expected.
func (s *Set) Expected() int { return int(s.expected.Load()) }

// Poller waits for the sockets of a set. It belongs to one goroutine.
type Poller struct {
	set     *Set
	timeout unix.Timespec
	fds     []unix.PollFd
	polled  []Socket // parallel to fds[1:]
	timers  []Timer
}

// Event is what has ended a wait.
type Event struct {
	// Ready says that the caller's own descriptor is readable.
	Ready bool
	// Replies says that sockets of the set were read.
	Replies bool
	// Woken says that other goroutines were woken or started, by replies or by timers.
	Woken bool
}

// NewPoller returns a Poller for the sockets of s.
func NewPoller(s *Set) *Poller { return &Poller{set: s, fds: make([]unix.PollFd, 1)} }

// Wait waits until the descriptor own or a socket of the set is readable, or a timer is due. It reads the readable sockets of the
// set; own is left to the caller, and ignored if it is negative. The errno is that of ppoll(2), such as EINTR, or EAGAIN if nothing has happened for as long as timeout.
//
// With inKernel the Go scheduler does not know of the wait: the goroutine keeps its P. See package server/udp.
func (p *Poller) Wait(own int, timeout time.Duration, inKernel bool) (Event, syscall.Errno) {
	p.snapshot(own)
	defer clear(p.polled)
	due := p.untilDue()
	p.timeout = unix.NsecToTimespec(int64(min(timeout, due)))
	call := syscall.Syscall6
	if inKernel {
		call = syscall.RawSyscall6
	}
	n, _, errno := call(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds[0])), uintptr(len(p.fds)), uintptr(unsafe.Pointer(&p.timeout)), 0, 0, 0)
	switch {
	case errno != 0:
		return Event{}, errno
	case n == 0 && due > timeout:
		return Event{}, unix.EAGAIN
	}
	return p.finish(int(n), due == 0 || n == 0), 0
}

// finish reads the replies after a wait that n descriptors have ended, and then fires the timers if some are due: the replies may have been
// there in time.
func (p *Poller) finish(n int, due bool) Event {
	e := Event{Ready: p.fds[0].Revents != 0}
	if e.Replies = n > 1 || n == 1 && !e.Ready; e.Replies {
		p.read()
		e.Woken = p.set.woken.Swap(false)
	}
	if due {
		e.Woken = p.fire() || e.Woken
	}
	return e
}

// untilDue returns the time until the next timer is due: 0 if one is.
func (p *Poller) untilDue() time.Duration {
	if len(p.timers) == 0 {
		return math.MaxInt64
	}
	due, now := time.Duration(math.MaxInt64), time.Now()
	for _, t := range p.timers {
		if next := t.Next(); !next.IsZero() {
			due = max(0, min(due, next.Sub(now)))
		}
	}
	return due
}

// fire fires the timers that are due, and reports whether that may have started goroutines.
func (p *Poller) fire() (started bool) {
	now := time.Now()
	for _, t := range p.timers {
		if next := t.Next(); !next.IsZero() && !next.After(now) {
			started = t.Fire(now) || started
		}
	}
	return started
}

// snapshot makes fds and polled those of own and of the set.
func (p *Poller) snapshot(own int) {
	p.fds, p.polled, p.timers = p.fds[:1], p.polled[:0], p.timers[:0]
	p.fds[0] = unix.PollFd{Fd: int32(own), Events: unix.POLLIN}
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for _, s := range p.set.sockets {
		p.fds = append(p.fds, unix.PollFd{Fd: int32(s.FD()), Events: unix.POLLIN})
		p.polled = append(p.polled, s)
	}
	p.timers = append(p.timers, p.set.timers...)
}

// read reads the sockets that are readable.
func (p *Poller) read() {
	p.set.reading.Lock()
	defer p.set.reading.Unlock()
	var flush func()
	for i, s := range p.polled {
		if p.fds[i+1].Revents == 0 {
			continue
		}
		f := s.ReadReplies()
		if f == nil {
			continue
		}
		if flush != nil {
			flush()
		}
		flush = f
	}
	if flush != nil {
		flush()
	}
}

// drainInterval is for how long Drain waits at once.
const drainInterval = 100 * time.Millisecond

// Drain reads replies until no more are expected, when the goroutine that has done so ends.
func (s *Set) Drain() {
	for p := NewPoller(s); s.Expected() > 0; {
		_, _ = p.Wait(-1, drainInterval, false)
	}
}
