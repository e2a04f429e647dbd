package upstream

import (
	"errors"
	"slices"
	"time"
)

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
