package udp

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/stat"
)

// The least time between two samples of one reader: sampleInterval while packets queue, and
// singleInterval while they are read one at a time. A sample costs a system call and a reading of the
// clock, about 400 ns. At ten times sampleInterval most bursts would be over before they are
// sampled. A packet that is read alone has rarely waited for anything but the reader's thread to wake up.
const (
	sampleInterval = time.Millisecond
	singleInterval = 100 * time.Millisecond
)

// maxClockDrift is how far the wall clock may move against the monotonic clock between
// two samples before the sample is discarded. It is more than the time between the two
// readings and less than a delay that matters.
const maxClockDrift = time.Millisecond

// DelayBuckets are the bounds of the histogram of a [DelaySampler], in seconds.
var DelayBuckets = []float64{
	10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10,
}

// DelaySampler measures how long packets wait in the socket before the reader takes them.
// The kernel stamps incoming packets while any socket of the machine asks for it, and
// keeps the stamp of the packet that was read last. Asking for that stamp costs one
// ioctl, where a control message with the stamp would cost every packet.
//
// The last packet of a batch arrived last, so the others have waited longer, by less
// than the time in which the batch arrived. If another process reads from the same
// socket, the stamp may belong to a packet that the other process took a moment later. A
// sample is therefore never longer than some packet has really waited.
//
// A DelaySampler belongs to one reader.
type DelaySampler struct {
	Delays *stat.Histogram // in which the samples are
	last   time.Duration   // when the last sample was taken, by package clock; at first 0
	first  time.Time       // of the first sample, with both clocks
	drift  time.Duration   // see checkDrift
	off    bool            // the kernel has no stamps
	stamp  unix.Timespec   // a field because a pointer passed to an interface method escapes
}

// Sample takes a sample unless the last one was too short a time ago. It is called just after p has
// read a batch of n packets; now is the time by package clock.
func (q *DelaySampler) Sample(p Socket, n int, now time.Duration) {
	interval := singleInterval
	if n > 1 {
		interval = sampleInterval
	}
	if now < q.last+interval || q.off {
		return
	}
	q.last = now
	at := time.Now()
	errno := p.Timestamp(&q.stamp)
	switch {
	case errno == unix.ENOENT: // nothing has been read from the socket yet
	case errno != 0:
		q.off = true
	case !q.clockSteady(at): // the wall clock was set, or this is the first sample
	default:
		// A packet without a stamp is given the time of the ioctl, so its delay is
		// negative. Stamps begin with the first ioctl.
		if wait := at.UnixNano() - q.stamp.Nano(); wait > 0 {
			q.Delays.Observe(time.Duration(wait).Seconds())
		}
	}
}

// clockSteady reports whether the wall clock has not been set since the last sample. It
// returns false for the first sample, because the kernel may not have stamped packets
// before it.
func (q *DelaySampler) clockSteady(at time.Time) bool {
	if q.first.IsZero() {
		q.first = at
		return false
	}
	// Sub uses the monotonic clock unless Round(0) has removed it.
	return q.checkDrift(at.Round(0).Sub(q.first.Round(0)) - at.Sub(q.first))
}

// checkDrift records how far the wall clock has moved ahead of the monotonic clock since
// the first sample, and reports whether that is unchanged within maxClockDrift.
func (q *DelaySampler) checkDrift(ahead time.Duration) (steady bool) {
	steady = (ahead - q.drift).Abs() < maxClockDrift
	q.drift = ahead
	return steady
}

// socketTimestamp stores the arrival time of the packet that was last read from fd.
func socketTimestamp(fd int, came *unix.Timespec) syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGSTAMPNS, uintptr(unsafe.Pointer(came)))
	return errno
}
