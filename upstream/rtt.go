package upstream

import (
	"sync/atomic"
	"time"
)

const (
	// smoothing is the inverse weight of a new sample in the smoothed RTT, as in TCP (RFC
	// 6298, 2.3).
	smoothing = 8
	// p95Step is the inverse step of the estimate of the 95th percentile. In equilibrium
	// the estimate varies by about a sixth. It doubles after 7 longer samples in a row and
	// halves after a hundred shorter ones.
	p95Step = 8
	// minSamples is how many samples the estimate of the 95th percentile needs.
	minSamples = 8

	// minHedgeDelay is the shortest time before a second server is asked. On a busy node a
	// reply may wait for milliseconds until its reader runs.
	minHedgeDelay = 5 * time.Millisecond
	// defaultHedgeDelay applies while there are too few samples. A resolver in the same
	// data centre answers in about 2 ms, a distant one in 40 ms.
	defaultHedgeDelay = 25 * time.Millisecond
	// hedgeDelays is how often the longest time before a second server is asked fits into the read timeout. Slow names,
	// which some client asks for again and again, must not delay it without bound.
	hedgeDelays = 8
	// minUnansweredDelay is the shortest time before a query counts as unanswered. It is
	// longer than a garbage collection pause or a burst, so that our own delays do not make
	// a server suspect.
	minUnansweredDelay = 20 * time.Millisecond
	// unansweredP95s is the same time in multiples of the 95th percentile. An authoritative
	// server that does not answer makes its resolver three to five times slower than that.
	unansweredP95s = 4
	// minResendDelay is the shortest time before a single server is asked again from
	// another port. It is longer than most names take to resolve, so a query without a
	// reply by then was probably lost.
	minResendDelay = 200 * time.Millisecond
	// resendDelays is how often the longest such time fits into the read timeout, once there are enough samples.
	resendDelays = 4
	// defaultResendDelay applies while there are too few samples: TCP's initial
	// retransmission timeout (RFC 6298, 2.1).
	defaultResendDelay = time.Second
	// resendP95s is the resend delay in multiples of the 95th percentile.
	resendP95s = 3
)

// rtt estimates the response time of one server over one protocol. The zero value has no
// samples. It is safe for concurrent use; of two concurrent samples one may be lost.
type rtt struct {
	srtt atomic.Int64 // smoothed RTT in nanoseconds; 0: no samples
	tail
	clients    clientTails
	measuredAt atomic.Int64 // time of the last sample, as a timestamp of the pool
}

// observe adds a sample measured at now. counted says that [exchange.observeSlow] was called for
// it before.
func (r *rtt) observe(took time.Duration, counted bool, now int64) {
	t := max(int64(took), 1)
	r.measuredAt.Store(now)
	if r.samples.Load() == 0 {
		r.srtt.Store(t)
	} else {
		smooth := r.srtt.Load()
		r.srtt.Store(max(smooth+(t-smooth)/smoothing, 1))
	}
	r.tail.observe(t, counted)
}

// tail estimates the 95th percentile of response times. The zero value has no samples. It is safe for concurrent use; of two
// concurrent samples one may be lost.
type tail struct {
	p95     atomic.Int64 // in nanoseconds
	samples atomic.Uint32
}

// observe adds a sample of t nanoseconds. counted is that of [rtt.observe].
func (e *tail) observe(t int64, counted bool) {
	n := e.samples.Load()
	if n == 0 {
		e.p95.Store(2 * t)
		e.samples.Store(1)
		return
	}
	if n < minSamples {
		e.samples.Store(n + 1)
	}
	switch p := e.p95.Load(); {
	case counted:
	case t > p:
		e.p95.Store(p + p*19/20/p95Step + 1)
	default:
		e.p95.Store(max(p-p/20/p95Step, 1))
	}
}

// observeSlow records that a pending reply takes longer than the 95th percentile. It is
// called before the reply arrives, because often nobody waits for it that long.
func (e *tail) observeSlow() {
	if e.samples.Load() > 0 {
		p := e.p95.Load()
		e.p95.Store(p + p*19/20/p95Step + 1)
	}
}

// forgetSlow undoes observeSlow for a query that was lost: that says nothing about response times.
func (e *tail) forgetSlow() {
	p := e.p95.Load()
	e.p95.Store(max(p*(20*p95Step)/(20*p95Step+19), 1))
}

// observeAtLeast records that a canceled query would have taken longer than so.
func (r *rtt) observeAtLeast(so time.Duration) {
	if smooth := r.srtt.Load(); smooth > 0 && int64(so) > smooth {
		r.srtt.Store(smooth + (int64(so)-smooth)/smoothing)
	}
}

// percentile95 returns the 95th percentile; false if there are too few samples.
func (e *tail) percentile95() (time.Duration, bool) {
	return time.Duration(e.p95.Load()), e.samples.Load() >= minSamples
}

// delays are the times to wait for a server.
type delays struct {
	hedge      time.Duration // until another server is asked as well
	unanswered time.Duration // until the query counts as unanswered
}

// delaysFor returns the delays for a server with this 95th percentile; known is false if
// there are too few samples. No delay exceeds half of readTimeout, so that a hedge can
// still succeed; that of a hedge is shorter, see [hedgeDelays].
func delaysFor(tail time.Duration, known bool, readTimeout time.Duration) delays {
	if !known {
		tail = defaultHedgeDelay
	}
	longest := max(readTimeout/2, time.Millisecond)
	return delays{
		hedge:      min(max(tail, minHedgeDelay), max(readTimeout/hedgeDelays, time.Millisecond)),
		unanswered: min(max(unansweredP95s*tail, minUnansweredDelay), longest),
	}
}
