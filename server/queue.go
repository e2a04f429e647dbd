package server

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/stat"
)

// looking is how often a reader looks at how long packets wait for it, at most. A look is
// a system call and a reading of the clock, 400 ns: less than a thousandth of a busy
// reader's time, and as often as packets come for one that is not busy. With half of it
// one would pay twice as much for another thousand samples a second; with ten times as
// much, most bursts would be over before anybody looked.
const looking = time.Millisecond

// jitter is by how much the wall clock may move against the one that nobody sets before
// that counts as setting it: more than the two readings are apart, and less than would
// show in a wait that matters.
const jitter = time.Millisecond

// waitBounds are those of the time that packets wait, in seconds: from what waking up a
// thread takes to what no client waits for any more.
var waitBounds = []float64{
	10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10,
}

// queue is what a reader knows of the queue in its socket: how long the packets that it
// takes have waited there. The kernel stamps each packet that comes in, for as long as any
// socket of the machine wants that, and keeps the stamp of the last one that was read; to
// ask for it costs one call, where a stamp with each packet would cost every packet.
//
// The last packet of a batch is the one that came last, so the others have waited longer:
// by less than the time in which a batch came. A packet that wakes its reader is alone in
// its batch; and where the queue is long, what matters is how long, not the order within
// sixteen. Where another process reads from the same socket, the stamp may be of a packet
// that it took a moment later. So a sample is never more than what some packet has waited.
type queue struct {
	waits *stat.Histogram
	next  time.Duration // when to look again, on the path's clock
	first time.Time     // of the first look, by both clocks
	ahead time.Duration // see moved
	off   bool          // the kernel does not say
	came  unix.Timespec // here, since an interface's method makes what it points to escape
}

// look takes a sample at now, on the path's clock, just after p has given a batch, if it is
// time to.
func (q *queue) look(p port, now time.Duration) {
	if now < q.next || q.off {
		return
	}
	q.next = now + looking
	at := time.Now()
	errno := p.stamp(&q.came)
	switch {
	case errno == unix.ENOENT: // nothing was read from it yet
	case errno != 0:
		q.off = true
	case !q.steady(at): // what the two clocks say doesn't go together
	default:
		// A packet that has no stamp gets the time of the question for it: those that
		// came before the first question, which makes the kernel stamp.
		if wait := at.UnixNano() - q.came.Nano(); wait > 0 {
			q.waits.Observe(float64(wait) / nanoseconds)
		}
	}
}

// steady reports whether nobody has set the wall clock since the last look. It is false for
// the first, when the kernel may not stamp packets yet.
func (q *queue) steady(at time.Time) bool {
	if q.first.IsZero() {
		q.first = at
		return false
	}
	// Sub goes by the clock that nobody sets, Round(0) leaves only the other one.
	return q.moved(at.Round(0).Sub(q.first.Round(0)) - at.Sub(q.first))
}

// moved takes down how far the wall clock is ahead of the other one, each since the first
// look, and reports whether that is where it was.
func (q *queue) moved(ahead time.Duration) (steady bool) {
	steady = (ahead - q.ahead).Abs() < jitter
	q.ahead = ahead
	return steady
}

// stampOf asks for the time at which the packet came that was last read from fd.
func stampOf(fd int, came *unix.Timespec) syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGSTAMPNS, uintptr(unsafe.Pointer(came)))
	return errno
}

// stamp is [port.stamp].
func (p *blocking) stamp(came *unix.Timespec) syscall.Errno { return stampOf(p.fd, came) }

// stamp is [port.stamp]. It allocates a few bytes, once for each look.
func (p *polled) stamp(came *unix.Timespec) syscall.Errno {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return unix.EBADF
	}
	errno := unix.EBADF
	_ = raw.Control(func(fd uintptr) { errno = stampOf(int(fd), came) }) // closed: EBADF
	return errno
}

// Waits is how long packets wait in the sockets before they are read, in seconds, of
// samples.
func (s *Server) Waits() stat.Snapshot { return s.waits.Read() }
