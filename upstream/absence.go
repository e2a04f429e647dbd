package upstream

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxAbsence is how long after its first failed query a pool still lets queries wait for servers that can't be
	// reached. A restart is shorter. In a longer outage queries fail at once and hold no waiting places.
	maxAbsence = 10 * time.Second
	// firstPause and maxPause bound the pauses between the rounds of an exchange, each of which is twice as long as the last.
	firstPause = 50 * time.Millisecond
	maxPause   = 250 * time.Millisecond
	// maxLaterRounds is how often an exchange asks again after the first round. The pauses allow fewer in 5 s; servers that come
	// and go would allow more.
	maxLaterRounds = 24
)

// absence is the time in which no server of a Pool can be reached: each refuses connections, or closes them without a reply.
// Exchanges wait for its end and ask again meanwhile, one in firstPause however many wait. It is safe for concurrent use.
type absence struct {
	noticed atomic.Bool // since is set: the first reply ends the absence

	mu          sync.Mutex
	since, last time.Time // the first and the last failed round; zero: there is no absence
	nextTurn    time.Time // when a waiting exchange may ask again
	waiting     map[*exchange]struct{}
}

// note records that all servers have failed an exchange at now. It reports whether exchanges may wait for them.
func (a *absence) note(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.IsZero() || now.Sub(a.last) >= maxAbsence {
		a.since = now
		a.noticed.Store(true)
	}
	a.last = now
	return now.Sub(a.since) < maxAbsence
}

// wait lets x wait: it is told when a server has replied.
func (a *absence) wait(x *exchange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = make(map[*exchange]struct{})
	}
	a.waiting[x] = struct{}{}
}

// turn reports whether x, which waits, may ask again at now: a server has replied, or no other exchange has asked in the
// last firstPause. If so, x no longer waits.
func (a *absence) turn(x *exchange, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, waits := a.waiting[x]; waits {
		if now.Before(a.nextTurn) {
			return false
		}
		a.nextTurn = now.Add(firstPause)
		delete(a.waiting, x)
	}
	return true
}

// over reports whether the absence for which x has waited is over.
func (a *absence) over(x *exchange) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, waits := a.waiting[x]
	return !waits
}

// leave ends the wait of x, if it waits.
func (a *absence) leave(x *exchange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, x)
}

// end ends the absence, because a server has replied, and wakes the exchanges that wait. It costs one atomic load while there is
// none.
func (a *absence) end() {
	if !a.noticed.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noticed.Store(false)
	a.since, a.nextTurn = time.Time{}, time.Time{}
	for x := range a.waiting {
		x.ring()
	}
	a.waiting = nil
}
