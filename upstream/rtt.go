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
	// p95Step is the step of the estimate of the 95th percentile, as a part of it.
	// In balance an estimate swings by about a sixth; it doubles with 7 times in a
	// row that are longer and halves with a hundred that are shorter. Half the step
	// is as slow again, double swings by a third.
	p95Step = 8
	// minSamples is how many times make an estimate of the 95th percentile: fewer say
	// nothing about the slowest of twenty, but the estimate starts at double the
	// first, and eight are there within the first seconds of a node.
	minSamples = 8

	// minHedgeDelay is the least time before another server is asked, too. On a busy
	// node a reply waits for milliseconds until somebody reads it: half would ask
	// twice for that alone, double is late for servers of the same data centre.
	minHedgeDelay = 5 * time.Millisecond
	// defaultHedgeDelay is that time where nothing is measured yet. A resolver of the same
	// data centre answers in 2 ms, one far away in 40: half would ask those twice
	// for each of the first names, double makes the first names of a node wait.
	defaultHedgeDelay = 25 * time.Millisecond
	// minUnansweredDelay is how long a query is outstanding, at least, before that speaks
	// against the server. It is longer than a collection of garbage or a burst that
	// waits its turn; with half of it a server would be doubted for our own pauses,
	// with double queries run into one that is frozen for twice as long.
	minUnansweredDelay = 20 * time.Millisecond
	// unansweredP95s is the same in 95th percentiles: an authoritative server that does
	// not answer makes its resolver three to five times as slow as its slowest
	// twentieth. With half of it slow names speak against their server.
	unansweredP95s = 4
	// minResendDelay is how long the only server has before it is asked again, over
	// another port: longer than nearly any name takes, so that what is
	// outstanding still is lost. Half is the time of many names, double lets a
	// client with a timeout of one second see the loss.
	minResendDelay = 200 * time.Millisecond
	// defaultResendDelay is that time where too little is measured: that of a TCP connection's
	// first segment, for the same reason (RFC 6298, 2.1). Half is the time of many names
	// that nobody has asked for; double is longer than clients wait that are in a hurry.
	defaultResendDelay = time.Second
	// resendP95s is the same in 95th percentiles.
	resendP95s = 3
)

// rtt is how long one server takes over one protocol. The zero value has measured
// nothing. It is safe for concurrent use: of two samples at once one may be lost.
type rtt struct {
	srtt       atomic.Int64 // nanoseconds; 0: nothing measured
	p95        atomic.Int64 // the 95th percentile, or its estimate so far
	samples    atomic.Uint32
	measuredAt atomic.Int64 // when the last one was measured, as a stamp of the pool
}

// observe takes a time that was measured at now. counted says that it was known
// before to be beyond the tail (see [rtt.observeSlow]).
func (r *rtt) observe(took time.Duration, counted bool, now int64) {
	t := max(int64(took), 1)
	r.measuredAt.Store(now)
	n := r.samples.Load()
	if n == 0 {
		r.srtt.Store(t)
		r.p95.Store(2 * t)
		r.samples.Store(1)
		return
	}
	if n < minSamples {
		r.samples.Store(n + 1)
	}
	smooth := r.srtt.Load()
	r.srtt.Store(max(smooth+(t-smooth)/smoothing, 1))
	switch tail := r.p95.Load(); {
	case counted:
	case t > tail:
		r.p95.Store(tail + tail*19/20/p95Step + 1)
	default:
		r.p95.Store(max(tail-tail/20/p95Step, 1))
	}
}

// observeSlow notes that a reply takes longer than the tail, before it is there: often
// nobody waits for it until then.
func (r *rtt) observeSlow() {
	if r.samples.Load() > 0 {
		tail := r.p95.Load()
		r.p95.Store(tail + tail*19/20/p95Step + 1)
	}
}

// observeAtLeast notes that a reply that nobody waits for any more would have taken longer
// than so.
func (r *rtt) observeAtLeast(so time.Duration) {
	if smooth := r.srtt.Load(); smooth > 0 && int64(so) > smooth {
		r.srtt.Store(smooth + (int64(so)-smooth)/smoothing)
	}
}

// percentile95 is the 95th percentile; false if there are too few times.
func (r *rtt) percentile95() (time.Duration, bool) {
	return time.Duration(r.p95.Load()), r.samples.Load() >= minSamples
}

// delays are how long a server is waited for.
type delays struct {
	hedge      time.Duration // until another one is asked, too
	unanswered time.Duration // until that speaks against it
}

// delaysFor is how long a server of this tail is waited for; known is false where too
// few times are measured. No wait is longer than half of readTimeout, so that what
// comes of it is there in time.
func delaysFor(tail time.Duration, known bool, readTimeout time.Duration) delays {
	if !known {
		tail = defaultHedgeDelay
	}
	longest := max(readTimeout/2, time.Millisecond)
	return delays{
		hedge:      min(max(tail, minHedgeDelay), longest),
		unanswered: min(max(unansweredP95s*tail, minUnansweredDelay), longest),
	}
}
