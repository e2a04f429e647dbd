package server

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/stat"
)

// sampleInterval is how often a reader looks at how long packets wait for it, at most. A look is
// a system call and a reading of the clock, 400 ns: less than a thousandth of a busy
// reader's time, and as often as packets come for one that is not busy. With half of it
// one would pay twice as much for another thousand samples a second; with ten times as
// much, most bursts would be over before anybody looked.
const sampleInterval = time.Millisecond

// maxClockDrift is by how much the wall clock may move against the one that nobody sets before
// that counts as setting it: more than the two readings are apart, and less than would
// show in a wait that matters.
const maxClockDrift = time.Millisecond

// delayBuckets are those of the time that packets wait, in seconds: from what waking up a
// thread takes to what no client waits for any more.
var delayBuckets = []float64{
	10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10,
}

// delaySampler is what a reader knows of the queue in its socket: how long the packets that it
// takes have waited there. The kernel stamps each packet that comes in, for as long as any
// socket of the machine wants that, and keeps the stamp of the last one that was read; to
// ask for it costs one call, where a stamp with each packet would cost every packet.
//
// The last packet of a batch is the one that came last, so the others have waited longer:
// by less than the time in which a batch came. A packet that wakes its reader is alone in
// its batch; and where the queue is long, what matters is how long, not the order within
// sixteen. Where another process reads from the same socket, the stamp may be of a packet
// that it took a moment later. So a sample is never more than what some packet has waited.
type delaySampler struct {
	delays *stat.Histogram
	next   time.Duration // when to look again, on the path's clock
	first  time.Time     // of the first look, by both clocks
	drift  time.Duration // see moved
	off    bool          // the kernel does not say
	stamp  unix.Timespec // here, since an interface's method makes what it points to escape
}

// sample takes a sample at now, on the path's clock, just after p has given a batch, if it is
// time to.
func (q *delaySampler) sample(p udpSocket, now time.Duration) {
	if now < q.next || q.off {
		return
	}
	q.next = now + sampleInterval
	at := time.Now()
	errno := p.timestamp(&q.stamp)
	switch {
	case errno == unix.ENOENT: // nothing was read from it yet
	case errno != 0:
		q.off = true
	case !q.clockSteady(at): // what the two clocks say doesn't go together
	default:
		// A packet that has no stamp gets the time of the question for it: those that
		// came before the first question, which makes the kernel stamp.
		if wait := at.UnixNano() - q.stamp.Nano(); wait > 0 {
			q.delays.Observe(float64(wait) / nanoseconds)
		}
	}
}

// clockSteady reports whether nobody has set the wall clock since the last look. It is false for
// the first, when the kernel may not stamp packets yet.
func (q *delaySampler) clockSteady(at time.Time) bool {
	if q.first.IsZero() {
		q.first = at
		return false
	}
	// Sub goes by the clock that nobody sets, Round(0) leaves only the other one.
	return q.checkDrift(at.Round(0).Sub(q.first.Round(0)) - at.Sub(q.first))
}

// checkDrift takes down how far the wall clock is ahead of the other one, each since the first
// look, and reports whether that is where it was.
func (q *delaySampler) checkDrift(ahead time.Duration) (steady bool) {
	steady = (ahead - q.drift).Abs() < maxClockDrift
	q.drift = ahead
	return steady
}

// socketTimestamp asks for the time at which the packet came that was last read from fd.
func socketTimestamp(fd int, came *unix.Timespec) syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGSTAMPNS, uintptr(unsafe.Pointer(came)))
	return errno
}

// timestamp is [udpSocket.timestamp].
func (p *blockingSocket) timestamp(came *unix.Timespec) syscall.Errno {
	return socketTimestamp(p.fd, came)
}

// timestamp is [udpSocket.timestamp]. It allocates a few bytes, once for each look.
func (p *polledSocket) timestamp(came *unix.Timespec) syscall.Errno {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return unix.EBADF
	}
	errno := unix.EBADF
	_ = raw.Control(func(fd uintptr) { errno = socketTimestamp(int(fd), came) }) // closed: EBADF
	return errno
}

// SocketDelay is how long packets wait in the sockets before they are read, in seconds, of
// samples.
func (s *Server) SocketDelay() stat.Snapshot { return s.delays.Read() }
