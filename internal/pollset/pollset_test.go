package pollset_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// pair is one end of a socket pair, which a set reads, and the other end.
type pair struct {
	set     *pollset.Set
	fds     [2]int
	flushed *atomic.Int32
}

func newPair(t *testing.T, set *pollset.Set, flushed *atomic.Int32) *pair {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	check.NoError(t, err)
	t.Cleanup(func() {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
	})
	return &pair{set, fds, flushed}
}

func (p *pair) FD() int { return p.fds[0] }

func (p *pair) ReadReplies() func() {
	var b [1]byte
	if n, err := unix.Read(p.fds[0], b[:]); n == 1 && err == nil {
		p.set.Expect(-1)
		p.set.Remove(p)
		return func() { p.flushed.Add(1) }
	}
	return nil
}

func (p *pair) expect() {
	p.set.Add(p)
	p.set.Expect(1)
}

func (p *pair) send(t *testing.T) {
	t.Helper()
	_, err := unix.Write(p.fds[1], []byte{1})
	check.NoError(t, err)
}

// wait waits, again after a signal of the runtime.
func wait(p *pollset.Poller, own int, timeout time.Duration, inKernel bool) (pollset.Event, syscall.Errno) {
	for {
		if e, errno := p.Wait(own, timeout, inKernel); errno != unix.EINTR {
			return e, errno
		}
	}
}

// TestWait: a wait ends by a packet for the caller, by replies, by both, and by the timeout.
func TestWait(t *testing.T) {
	for _, inKernel := range []bool{false, true} {
		var flushed atomic.Int32
		set := new(pollset.Set)
		own, one, two := newPair(t, set, &flushed), newPair(t, set, &flushed), newPair(t, set, &flushed)
		p := pollset.NewPoller(set)
		type result struct {
			pollset.Event
			Expected int
			Flushed  int32
			Timeout  bool
		}
		expect := func(want result) {
			t.Helper()
			e, errno := wait(p, own.FD(), time.Millisecond, inKernel)
			check.Equal(t, want, result{e, set.Expected(), flushed.Swap(0), errno == unix.EAGAIN}, "in the kernel %t", inKernel)
		}
		expect(result{Timeout: true})
		one.send(t)
		expect(result{Timeout: true}) // it is not in the set
		one.expect()
		two.expect()
		expect(result{Event: pollset.Event{Replies: true}, Expected: 1, Flushed: 1})
		two.send(t)
		own.send(t)
		expect(result{Event: pollset.Event{Ready: true, Replies: true}, Flushed: 1})
		expect(result{Event: pollset.Event{Ready: true}}) // nobody has read it
	}
}

// timer is due at the given time, once.
type timer struct {
	at    time.Time
	fired int
}

func (t *timer) Next() time.Time { return t.at }

func (t *timer) Fire(time.Time) bool {
	t.fired++
	t.at = time.Time{}
	return true
}

// TestTimer: a wait ends in time for a timer, and the next one fires it. A timer that is removed does not count.
func TestTimer(t *testing.T) {
	set := new(pollset.Set)
	p := pollset.NewPoller(set)
	now := time.Now()
	soon, never := &timer{at: now.Add(5 * time.Millisecond)}, &timer{at: now}
	set.AddTimer(never)
	set.AddTimer(soon)
	set.RemoveTimer(never)
	for e := (pollset.Event{}); !e.Woken; {
		var errno syscall.Errno
		if e, errno = wait(p, -1, time.Hour, false); errno != 0 {
			t.Fatal(errno) // nothing has happened for an hour
		}
	}
	check.Equal(t, []int{1, 0}, []int{soon.fired, never.fired}, "how often the timers have fired")
	_, errno := wait(p, -1, time.Millisecond, false)
	check.Equal(t, int(unix.EAGAIN), int(errno), "the error without a timer")
}

// lateTimer is due, and notes whether replies have been read when it fires.
type lateTimer struct {
	timer
	set      *pollset.Set
	expected int
}

func (l *lateTimer) Fire(now time.Time) bool {
	l.expected = l.set.Expected()
	return l.timer.Fire(now)
}

// TestReplyInTime: a reply that is there when a timer is due is read before the timer fires: it was the reader that was late.
func TestReplyInTime(t *testing.T) {
	var flushed atomic.Int32
	set := new(pollset.Set)
	one := newPair(t, set, &flushed)
	one.expect()
	one.send(t)
	late := &lateTimer{timer: timer{at: time.Now()}, set: set, expected: -1}
	set.AddTimer(late)
	e, errno := wait(pollset.NewPoller(set), -1, time.Hour, true)
	check.Equal(t, pollset.Event{Replies: true, Woken: true}, e, "the event (errno %d)", errno)
	check.Equal(t, 0, late.expected, "the replies that are expected when the timer fires")
}

// TestWoken: a wait reports once that a reply has woken another goroutine.
func TestWoken(t *testing.T) {
	var flushed atomic.Int32
	set := new(pollset.Set)
	one, two := newPair(t, set, &flushed), newPair(t, set, &flushed)
	one.expect()
	two.expect()
	p := pollset.NewPoller(set)
	for _, woken := range []bool{true, false} {
		if woken {
			set.Wake()
			one.send(t)
		} else {
			two.send(t)
		}
		e, _ := wait(p, -1, time.Hour, true)
		check.Equal(t, pollset.Event{Replies: true, Woken: woken}, e, "the event")
	}
}

// TestDrain: what is expected when the reader ends is read, and then nothing is left that reads.
func TestDrain(t *testing.T) {
	var flushed atomic.Int32
	set := new(pollset.Set)
	one, two := newPair(t, set, &flushed), newPair(t, set, &flushed)
	one.expect()
	two.expect()
	drained := make(chan struct{})
	go func() {
		set.Drain()
		close(drained)
	}()
	one.send(t)
	two.send(t)
	<-drained
	if n := flushed.Load(); n != 2 || set.Expected() != 0 {
		t.Errorf("%d replies were passed on, and %d are expected", n, set.Expected())
	}
}

// TestFull: a wait does not get more expensive than for a bounded number of sockets.
func TestFull(t *testing.T) {
	set := new(pollset.Set)
	var flushed atomic.Int32
	var last *pair
	for n := 0; !set.Full(); n++ {
		if n > 1000 {
			t.Fatal("a set of 1,000 sockets is not full")
		}
		last = newPair(t, set, &flushed)
		set.Add(last)
	}
	set.Remove(last)
	if set.Full() {
		t.Error("a set without the last socket is full")
	}
}
