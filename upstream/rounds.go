package upstream

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rounds is the part of an exchange that asks all servers again, because none could be reached. A server that restarts refuses
// connections for about a second: that is no failure of the queried name.
type rounds struct {
	away    []*server // the servers that have refused the query in this round, and are not asked again in it
	nextAt  time.Time // when the next round begins; zero: one is under way
	begunAt time.Time // when the last round began
	pause   time.Duration
	later   int // rounds after the first
	failed  int // attempts in all rounds
	// unreachable says that a server could not be reached, absent that it was so in this round.
	unreachable, absent bool
	// closed is how often a server has closed the connection without a reply, but has replied to other queries since it was asked.
	closed int
}

// maxClosed is how often that may be a coincidence: the server has replied before it went away, or after it came back. After that the
// fault is the query's.
const maxClosed = 3

// isAway reports whether the server of q, which has failed with err, can't be reached. replying says that it has replied to other queries
// since then.
func (x *exchange) isAway(err error, replying bool) bool {
	if !isUnavailable(err) {
		return false
	}
	if replying && !isUnreachable(err) {
		x.rounds.closed++
	}
	return x.rounds.closed <= maxClosed
}

// noteFailed records that q has failed with err. A server that has refused it is not asked again in this round; one that has closed the
// connection is, because that may have been an old one.
func (x *exchange) noteFailed(q *query, err error, now time.Time) {
	r := &x.rounds
	r.failed++
	replying := q.attempt.server.lastReply.Load() >= x.pool.timestamp(q.attempt.sent)
	away := x.isAway(err, replying)
	if away {
		r.absent, r.unreachable = true, true
	}
	switch {
	case away && q.attempt.isHedge && x.inFlight > 0 && r.failed < maxLaterRounds:
		x.hedgeAgain(q, now)
	case away && isUnreachable(err) && !replying:
		r.away = append(r.away, q.attempt.server)
	default:
		x.failuresLeft--
		if isTimeout(err) { // after so long the others may be back
			r.away = r.away[:0]
		}
	}
}

// hedgeAgain lets the queries in flight be hedged again later, because q, which hedged them, was refused: their server has probably lost
// them in a restart.
func (x *exchange) hedgeAgain(q *query, now time.Time) {
	x.hedgesLeft++
	if q.attempt.repeats && q.tcp { // an ICMP message tells sooner whether the server is still away
		q.attempt.server.tcpSilent.Store(true)
	}
	if q.attempt.paid {
		x.pool.hedgeBudget.refund()
	}
	for _, other := range x.queries[:x.inFlight] {
		a := &other.attempt
		if a.hedged = false; other.phase == inTransport {
			a.nextCheck = now.Add(maxPause)
		}
	}
}

// pausing reports whether x waits for its next round.
func (x *exchange) pausing() bool { return !x.rounds.nextAt.IsZero() }

// pauseRound lets x wait for its next round, after all servers were away in this one. Only a client without an expired answer
// waits, and never longer than for a server that is silent.
func (x *exchange) pauseRound(now time.Time) {
	r := &x.rounds
	if !r.absent || !x.pool.absence.note(now) || x.attemptsUsedUp() || x.urgency != forClient || r.later == maxLaterRounds || !now.Before(x.lastRound()) {
		return
	}
	x.pool.absence.wait(x)
	r.pause = min(max(2*r.pause, firstPause), maxPause)
	x.delayRound(now)
}

// attemptsUsedUp reports whether as many attempts have failed as max_connect_attempts allows. Without that option the pauses
// bound the attempts at servers that are away.
func (x *exchange) attemptsUsedUp() bool {
	return x.pool.cfg.MaxConnectAttempts != 0 && x.rounds.failed >= x.pool.failureLimit(len(x.servers))
}

// delayRound sets the time of the next round.
func (x *exchange) delayRound(now time.Time) {
	x.rounds.nextAt = now.Add(x.rounds.pause)
	if last := x.lastRound(); last.Before(x.rounds.nextAt) {
		x.rounds.nextAt = last
	}
}

// lastRound returns when the last round begins at the latest.
func (x *exchange) lastRound() time.Time {
	if last := x.begun.Add(x.pool.cfg.ReadTimeout); last.Before(x.deadline) {
		return last
	}
	return x.deadline
}

// checkRound begins the next round if it is due or a server has replied to another exchange.
func (x *exchange) checkRound(now time.Time) {
	r, absence := &x.rounds, &x.pool.absence
	if now.Before(r.nextAt) {
		if !absence.over(x) {
			return
		}
		if soon := r.begunAt.Add(firstPause); now.Before(soon) { // so that rounds stay apart while servers come and go
			r.nextAt = soon
			return
		}
	} else if now.Before(x.lastRound()) && !absence.turn(x, now) {
		x.delayRound(now)
		return
	}
	absence.leave(x)
	r.later++
	r.begunAt, r.nextAt, r.away, r.absent = now, time.Time{}, r.away[:0], false
	x.nextIndex, x.allDown, x.servers = 0, false, x.pool.servers()
	x.failuresLeft = len(x.servers)
	x.orderServers()
	x.askNext(now)
}

// handleFailure processes the end of q without a reply.
func (x *exchange) handleFailure(q *query, err error, now time.Time) {
	a := &q.attempt
	x.keepTruncated(a, err)
	x.err, x.localFailure = newQueryError(q, q.local, publicError(err), err), x.localFailure || isLocal(err) && !isUnavailable(err)
	if x.pool.stop.Err() != nil {
		return
	}
	x.pool.recordFailure(a, err)
	x.noteFailed(q, err, now)
	x.carryOn(a, now)
}

// keepTruncated keeps the truncated reply to a over UDP, which is better than none, after TCP
// has failed with err.
func (x *exchange) keepTruncated(a *attempt, err error) {
	if !a.hasTruncated || a.cut && errors.Is(err, ErrFailed) {
		return
	}
	x.keepFallback(a, a.truncated, time.Time{})
	x.fallbackRecord = a.truncatedRecord
	if a.cut && !slices.Contains(x.failedOver, a.server) { // another server's path may be better
		x.failedOver = append(x.failedOver, a.server)
	}
}

// carryOn asks the next server after the failure of a, unless another query is in flight or
// the fallback is good enough. With no server left and no fallback, it waits for the next round.
func (x *exchange) carryOn(a *attempt, now time.Time) {
	if x.inFlight > 0 || x.hasFallback && !a.cut || x.failuresLeft > 0 && !x.attemptsUsedUp() && x.askNext(now) {
		return
	}
	if !x.hasFallback {
		x.pauseRound(now)
	}
}

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
