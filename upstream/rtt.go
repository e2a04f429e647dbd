package upstream

import (
	"sync/atomic"
	"time"
)

const (
	// smoothing is the share of a new time in the smoothed one, as an eighth: TCP's
	// (RFC 6298, 2.3). With a quarter one slow name hides a fast server, with a
	// sixteenth a server that has become slow is found out after twice as many.
	smoothing = 8
	// tailStep is the step of the estimate of the 95th percentile, as a part of it.
	// In balance an estimate swings by about a sixth; it doubles with 7 times in a
	// row that are longer and halves with a hundred that are shorter. Half the step
	// is as slow again, double swings by a third.
	tailStep = 8
	// enough is how many times make an estimate of the 95th percentile: fewer say
	// nothing about the slowest of twenty, but the estimate starts at double the
	// first, and eight are there within the first seconds of a node.
	enough = 8

	// hedgeFloor is the least time before another server is asked, too. On a busy
	// node a reply waits for milliseconds until somebody reads it: half would ask
	// twice for that alone, double is late for servers of the same data centre.
	hedgeFloor = 5 * time.Millisecond
	// hedgeUnknown is that time where nothing is measured yet. A resolver of the same
	// data centre answers in 2 ms, one far away in 40: half would ask those twice
	// for each of the first names, double makes the first names of a node wait.
	hedgeUnknown = 25 * time.Millisecond
	// lateFloor is how long a query is outstanding, at least, before that speaks
	// against the server. It is longer than a collection of garbage or a burst that
	// waits its turn; with half of it a server would be doubted for our own pauses,
	// with double queries run into one that is frozen for twice as long.
	lateFloor = 20 * time.Millisecond
	// lateTails is the same in 95th percentiles: an authoritative server that does
	// not answer makes its resolver three to five times as slow as its slowest
	// twentieth. With half of it slow names speak against their server.
	lateTails = 4
	// resendFloor is how long the only server has before it is asked again, over
	// another port: longer than nearly any name takes, so that what is
	// outstanding still is lost. Half is the time of many names, double lets a
	// client with a timeout of one second see the loss.
	resendFloor = 200 * time.Millisecond
	// resendUnknown is that time where too little is measured: that of a TCP connection's
	// first segment, for the same reason (RFC 6298, 2.1). Half is the time of many names
	// that nobody has asked for; double is longer than clients wait that are in a hurry.
	resendUnknown = time.Second
	// resendTails is the same in 95th percentiles.
	resendTails = 3
)

// rtt is how long one server takes over one protocol. The zero value has measured
// nothing. It is safe for concurrent use: of two samples at once one may be lost.
type rtt struct {
	smooth atomic.Int64 // nanoseconds; 0: nothing measured
	tail   atomic.Int64 // the 95th percentile, or its estimate so far
	count  atomic.Uint32
	last   atomic.Int64 // when the last one was measured, as a stamp of the pool
}

// observe takes a time that was measured at now. counted says that it was known
// before to be beyond the tail (see [rtt.beyond]).
func (r *rtt) observe(took time.Duration, counted bool, now int64) {
	t := max(int64(took), 1)
	r.last.Store(now)
	n := r.count.Load()
	if n == 0 {
		r.smooth.Store(t)
		r.tail.Store(2 * t)
		r.count.Store(1)
		return
	}
	if n < enough {
		r.count.Store(n + 1)
	}
	smooth := r.smooth.Load()
	r.smooth.Store(max(smooth+(t-smooth)/smoothing, 1))
	switch tail := r.tail.Load(); {
	case counted:
	case t > tail:
		r.tail.Store(tail + tail*19/20/tailStep + 1)
	default:
		r.tail.Store(max(tail-tail/20/tailStep, 1))
	}
}

// beyond notes that a reply takes longer than the tail, before it is there: often
// nobody waits for it until then.
func (r *rtt) beyond() {
	if r.count.Load() > 0 {
		tail := r.tail.Load()
		r.tail.Store(tail + tail*19/20/tailStep + 1)
	}
}

// atLeast notes that a reply that nobody waits for any more would have taken longer
// than so.
func (r *rtt) atLeast(so time.Duration) {
	if smooth := r.smooth.Load(); smooth > 0 && int64(so) > smooth {
		r.smooth.Store(smooth + (int64(so)-smooth)/smoothing)
	}
}

// percentile is the 95th percentile; false if there are too few times.
func (r *rtt) percentile() (time.Duration, bool) {
	return time.Duration(r.tail.Load()), r.count.Load() >= enough
}

// waits are how long a server is waited for.
type waits struct {
	hedge time.Duration // until another one is asked, too
	late  time.Duration // until that speaks against it
}

// waitsFor is how long a server of this tail is waited for; known is false where too
// few times are measured. No wait is longer than half of readTimeout, so that what
// comes of it is there in time.
func waitsFor(tail time.Duration, known bool, readTimeout time.Duration) waits {
	if !known {
		tail = hedgeUnknown
	}
	longest := max(readTimeout/2, time.Millisecond)
	return waits{
		hedge: min(max(tail, hedgeFloor), longest),
		late:  min(max(lateTails*tail, lateFloor), longest),
	}
}
