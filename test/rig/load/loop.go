package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// LoopJob is what the clients of a [Loop] are to do.
type LoopJob struct {
	// Server is who is asked, at an IPv4 address.
	Server netip.AddrPort
	// Length ends streams that have no Count.
	Length time.Duration
	// Streams run side by side.
	Streams []Stream
}

// batch is how many descriptors with something to read are served before the loop
// looks at the clock again, so that a query is late by twenty microseconds at most
// if the upstream is busy.
const batch = 8

// gap is the time between two turns of the loop from which on it did not have its
// core: the longest turn, with a batch that is all questions to the upstream,
// takes a quarter of it.
const gap = 100 * time.Microsecond

// Loop is an upstream that answers from Open until Close, and clients when there
// is a job. Its methods may be called from several goroutines.
type Loop struct {
	clock
	epoll, wake int
	addr        netip.AddrPort
	up          upstream
	buf         [slots]byte
	events      [batch]unix.EpollEvent
	// socks are the clients' sockets by descriptor; only the loop uses it.
	socks map[int32]*socket

	work chan task
	done chan struct{}
}

// task is a job on its way to the loop and back.
type task struct {
	ctx     context.Context
	job     LoopJob
	clients []*client
	reply   chan<- error
}

// Open starts an upstream on a free port of 127.0.0.1; the caller calls Close.
func Open() (*Loop, error) {
	l := &Loop{
		clock: clock{time.Now()}, socks: map[int32]*socket{},
		work: make(chan task, 1), done: make(chan struct{}),
	}
	l.up.late.queue, l.up.slow.queue = make([]reply, maxDelayed), make([]reply, maxDelayed)
	var err error
	if l.up.fd, err = open(netip.Addr{}, netip.AddrPort{}, receiveBuffer); err != nil {
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		unix.Close(l.up.fd)
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(l.up.fd)
		unix.Close(l.epoll)
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	local, err := unix.Getsockname(l.up.fd)
	if at, ok := local.(*unix.SockaddrInet4); ok {
		l.addr = netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	}
	if err := errors.Join(err, watch(l.epoll, l.up.fd), watch(l.epoll, l.wake)); err != nil {
		l.release()
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	go l.serve()
	return l, nil
}

// Addr is where the upstream listens.
func (l *Loop) Addr() netip.AddrPort { return l.addr }

// Asked is how many questions the upstream has had for names that are not late,
// and Late for those that are.
func (l *Loop) Asked() uint64 { return l.up.asked.Load() }
func (l *Loop) Late() uint64  { return l.up.delayed.Load() }

// Limit makes the upstream drop the queries beyond a budget silently from now on; nil is no budget.
func (l *Loop) Limit(b *Budget) error {
	l.up.budget.Store(b)
	return stamp(l.up.fd, b != nil)
}

// Answer is what the upstream says to a query, at once; nil if it is none. It is
// for another way to ask than UDP, and counts.
func (l *Loop) Answer(query []byte) []byte {
	msg, delay := respond(nil, query)
	if delay > 0 {
		l.up.delayed.Add(1)
	} else {
		l.up.asked.Add(1)
	}
	return msg
}

// Close ends the upstream. No job may be under way.
func (l *Loop) Close() {
	close(l.work)
	l.rouse()
	<-l.done
	l.release()
}

func (l *Loop) release() {
	unix.Close(l.up.fd)
	unix.Close(l.epoll)
	unix.Close(l.wake)
}

// rouse ends the wait of a loop that has no job.
func (l *Loop) rouse() { _, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Run does the job and returns a result for each stream. It blocks until every
// query is answered or given up, which takes a second longer than the job at most,
// or the context ends. One job runs at a time; others wait.
func (l *Loop) Run(ctx context.Context, j LoopJob) ([]Result, error) {
	t := task{ctx: ctx, job: j}
	defer func() {
		for _, c := range t.clients {
			c.close()
		}
	}()
	for _, s := range j.Streams {
		c, err := newClient(s, j.Server, j.Length)
		t.clients = append(t.clients, c)
		if err != nil {
			return nil, err
		}
		c.clock = l.clock
	}
	reply := make(chan error, 1)
	t.reply = reply
	// What was left over so far is collected now and not during the job.
	runtime.GC()
	l.work <- t
	l.rouse()
	if err := <-reply; err != nil {
		return nil, err
	}
	results := make([]Result, len(t.clients))
	for i, c := range t.clients {
		if c.errno != 0 {
			return nil, fmt.Errorf("asking %s: %w", j.Server, c.errno)
		}
		results[i] = c.Result
	}
	return results, nil
}

// serve is the loop as long as there is no job.
func (l *Loop) serve() {
	defer close(l.done)
	for {
		wait := -1
		if l.up.waits() {
			wait = 1 // late answers go out; to the millisecond is enough here
		}
		if len(l.work) > 0 {
			wait = 0 // the previous job has read the signal for this one
		}
		n, err := unix.EpollWait(l.epoll, l.events[:], wait)
		if err != nil {
			n = 0
		}
		now := l.now()
		l.dispatch(l.events[:max(n, 0)], now, false)
		l.up.flush(now)
		select {
		case t, ok := <-l.work:
			if !ok {
				return
			}
			t.reply <- l.do(t)
		default:
		}
	}
}

// do does a job.
func (l *Loop) do(t task) error {
	for _, c := range t.clients {
		for _, s := range c.socks {
			if c.Connect {
				continue // what the server says on a connection is not read
			}
			l.socks[int32(s.fd)] = s
			if err := watch(l.epoll, s.fd); err != nil {
				return err
			}
		}
	}
	defer clear(l.socks)
	before := l.now()
	for i, c := range t.clients {
		c.begin(before, t.job.Length, (float64(i)+0.5)/float64(len(t.clients)))
	}
	for left := len(t.clients); left > 0; {
		now := l.now()
		l.up.flush(now)
		left = 0
		for _, c := range t.clients {
			c.ask(now)
			if !c.finished(now) {
				left++
			}
		}
		n := look(l.epoll, l.events[:])
		now = l.now()
		l.dispatch(l.events[:n], now, now-before > gap)
		before = now
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
	}
	return nil
}

// dispatch reads one datagram from each descriptor that has any.
func (l *Loop) dispatch(events []unix.EpollEvent, now time.Duration, blurred bool) {
	for _, e := range events {
		switch int(e.Fd) {
		case l.up.fd:
			l.up.receive(now)
		case l.wake:
			_, _ = unix.Read(l.wake, l.buf[:8])
		default:
			if s := l.socks[e.Fd]; s != nil {
				s.receive(l.buf[:], now, blurred)
			}
		}
	}
}
