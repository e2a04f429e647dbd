package upstream

import (
	"slices"
	"time"
)

// rankOf returns the rank of c, including head-of-line blocking; t is locked.
func (t *streamTransport) rankOf(c *streamConn, now time.Time) rank {
	r := c.rank(now)
	if r == rankReady && t.headOfLineBlocked(c, now) {
		return rankBlocked
	}
	return r
}

// connLimit returns how many connections are allowed if best, nil for none, is the best
// one; t is locked. A server that has stopped answering altogether gets no more than
// maxConns.
func (t *streamTransport) connLimit(best *streamConn, now time.Time) int {
	if best != nil && t.rankOf(best, now) >= rankBlocked && !t.outOfOrder && now.Sub(t.lastReply) < stalledAfter {
		return maxConnsInOrder
	}
	return maxConns
}

const (
	// maxConnsInOrder is the maximum number of connections to a server that answers in
	// order, while all other connections are blocked by slow names.
	maxConnsInOrder = 32
	// pipelineLimitInOrder replaces [pipelineLimit] for a server that may answer in order:
	// each query then waits for all earlier ones on its connection.
	pipelineLimitInOrder = 16
	// minBlockedDelay is the shortest silence after which a connection counts as blocked.
	// It is longer than a reply waits for its reader on a busy machine.
	minBlockedDelay = 20 * time.Millisecond
	// blockedRTTs is the same in multiples of the typical RTT. A resolver for which a cache
	// miss takes four times as long as a hit has answered out of order before.
	blockedRTTs = 4
	// typicalRTTStep is the inverse step of the estimate of the typical RTT, which doubles
	// after eleven longer samples in a row.
	typicalRTTStep = 16
)

// headOfLineBlocked reports whether a slow name seems to delay the queries behind it on c;
// t is locked.
func (t *streamTransport) headOfLineBlocked(c *streamConn, now time.Time) bool {
	return !t.outOfOrder && c.inFlight > 0 && c.replyOverdue(now) >= t.blockedAfter()
}

// blockedAfter returns how long a connection may be silent before it counts as blocked; t
// is locked.
func (t *streamTransport) blockedAfter() time.Duration {
	return max(minBlockedDelay, blockedRTTs*t.typicalRTT)
}

// scheduleBlockedCheck sets the timer of c to the time at which it would count as blocked;
// t is locked.
func (t *streamTransport) scheduleBlockedCheck(c *streamConn, now time.Time) {
	if !t.outOfOrder && c.inFlight > 1 && c.conn != nil && !c.closed {
		c.wakeBy(c.owedSince.Add(t.blockedAfter()), now)
	}
}

// moveOneBlocked moves one query that is blocked on c to another connection, if one is
// available; t is locked. The others follow when it has been answered
// ([streamTransport.recordReply]), so a server that is slow with all queries gets no more
// of them.
func (t *streamTransport) moveOneBlocked(c *streamConn, now time.Time) {
	switch {
	case c.conn == nil || !t.headOfLineBlocked(c, now):
		t.scheduleBlockedCheck(c, now)
	case !c.movedOne:
		if list := c.queuedBehind(); len(list) > 0 && t.moveQuery(list[0], now) {
			list[0].movedFrom, c.movedOne = c, true
		}
	}
}

// moveQuery sends q again on another connection, if one is available, and ignores its reply
// on the first; t is locked.
func (t *streamTransport) moveQuery(q *query, now time.Time) bool {
	if q.resends == maxResends {
		return false
	}
	c := t.pickConn(now)
	if c == nil || c == q.conn || t.rankOf(c, now) >= rankBlocked || !t.mayResend() {
		return false
	}
	q.conn.orphan(q)
	q.resends++
	c.add(q, now)
	t.scheduleBlockedCheck(c, now)
	if c.claimWrite() {
		t.tasks.Go(func() { t.write(c) })
	}
	return true
}

// queuedBehind returns the queries in flight on c in the order in which they were added,
// without the first.
func (c *streamConn) queuedBehind() (list []*query) {
	for _, q := range c.queries {
		if q != nil {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *query) int { return int(int32(a.sequence - b.sequence)) })
	return list[min(1, len(list)):]
}

// currentPipelineLimit returns the pipeline limit of t's server; t is locked.
func (t *streamTransport) currentPipelineLimit() int {
	if t.outOfOrder {
		return pipelineLimit
	}
	return pipelineLimitInOrder
}

// recordReply records that the reply to q has arrived on c; t is locked.
func (t *streamTransport) recordReply(c *streamConn, q *query, now time.Time) {
	t.lastReply, c.movedOne = now, false
	if c.inFlight > int(c.lastSequence-q.sequence) { // more than were sent after q, so an earlier one is unanswered
		t.outOfOrder = true
	}
	if from := q.movedFrom; from != nil && from.movedOne && !from.closed && t.headOfLineBlocked(from, now) {
		for _, q := range from.queuedBehind() {
			if !t.moveQuery(q, now) {
				break
			}
		}
	}
	switch took := now.Sub(q.assignedAt); {
	case t.typicalRTT == 0:
		t.typicalRTT = max(took, time.Microsecond)
	case took > t.typicalRTT:
		t.typicalRTT += t.typicalRTT/typicalRTTStep + 1
	default:
		t.typicalRTT -= t.typicalRTT / typicalRTTStep
	}
}

// deliverMessage calls [streamConn.deliver] and completes the query; t is locked.
func (t *streamTransport) deliverMessage(c *streamConn, msg []byte, now time.Time) bool {
	q, ok := c.deliver(msg, now)
	if q != nil {
		t.recordReply(c, q, now)
		if q.claimReply() {
			c.replied = append(c.replied, q)
		} else {
			q.complete(nil)
		}
	}
	return ok
}
