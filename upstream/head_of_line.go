package upstream

import (
	"slices"
	"time"
)

// rankOf says how good it is to put a query on l; t is locked.
func (t *streamTransport) rankOf(c *streamConn, now time.Time) rank {
	r := c.rank(now)
	if r == rankReady && t.headOfLineBlocked(c, now) {
		return rankBlocked
	}
	return r
}

// connLimit is how many connections there may be where best is the best of them, nil for
// none; t is locked. A server from which nothing comes gets no more than usual.
func (t *streamTransport) connLimit(best *streamConn, now time.Time) int {
	if best != nil && t.rankOf(best, now) >= rankBlocked && !t.outOfOrder && now.Sub(t.lastReply) < stalledAfter {
		return maxConnsInOrder
	}
	return maxConns
}

const (
	// maxConnsInOrder is the connections to a server that answers one query after the other
	// (see [streamTransport.clientInFlight]) while all others wait for slow names there. Half of it would
	// have sixteen slow names hold up all others; double is more than a server expects
	// of one client.
	maxConnsInOrder = 32
	// pipelineLimitInOrder is as [pipelineLimit] where the server may take one query after the other: each is
	// then behind all others. Half of it would spread the queries of an ordinary second
	// over all connections; with double they wait for twice as many.
	pipelineLimitInOrder = 16
	// minBlockedDelay is the least silence that makes a connection one that is held up: longer
	// than a reply waits on a busy machine until somebody reads it. With half of it our
	// own pauses open connections; with double twice as many queries are behind a slow
	// one.
	minBlockedDelay = 20 * time.Millisecond
	// blockedRTTs is the same in the usual times of a reply: a resolver that answers
	// what it knows in one and what it does not in four has answered out of turn
	// before. With half of it a far server is held up by its distance.
	blockedRTTs = 4
	// typicalRTTStep is the step of the usual time's estimate, as a part of it: it doubles
	// with eleven longer times in a row. Half is as slow again, with double it swings by
	// a quarter.
	typicalRTTStep = 16
)

// headOfLineBlocked reports whether a slow name seems to hold up what is behind it on l; t is locked.
func (t *streamTransport) headOfLineBlocked(c *streamConn, now time.Time) bool {
	return !t.outOfOrder && c.inFlight > 0 && c.replyOverdue(now) >= t.blockedAfter()
}

// blockedAfter is how long a connection may be silent before that speaks of a slow name; t is
// locked.
func (t *streamTransport) blockedAfter() time.Duration {
	return max(minBlockedDelay, blockedRTTs*t.typicalRTT)
}

// scheduleBlockedCheck has l looked after when a slow name may hold up others there; t is locked.
func (t *streamTransport) scheduleBlockedCheck(c *streamConn, now time.Time) {
	if !t.outOfOrder && c.inFlight > 1 && c.conn != nil && !c.closed {
		c.wakeBy(c.owedSince.Add(t.blockedAfter()), now)
	}
}

// moveOneBlocked takes one of the queries that are held up behind a slow name on l elsewhere, if
// there is a place; t is locked. When that has been answered the others follow it
// ([streamTransport.recordReply]): a server that is slow with all of them is asked for no more.
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

// moveQuery asks c's query once more on another connection, if there is a place; t is locked.
// What comes of the first time is dropped.
func (t *streamTransport) moveQuery(q *query, now time.Time) bool {
	if q.resends == maxResends {
		return false
	}
	c := t.pickConn(now)
	if c == nil || c == q.conn || t.rankOf(c, now) >= rankBlocked {
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

// queuedBehind gives the calls that were put on l after another one that is still in flight, in
// the order in which they were.
func (c *streamConn) queuedBehind() (list []*query) {
	for _, q := range c.queries {
		if q != nil {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *query) int { return int(int32(a.sequence - b.sequence)) })
	return list[min(1, len(list)):]
}

// currentPipelineLimit is how many queries in flight are too many; t is locked.
func (t *streamTransport) currentPipelineLimit() int {
	if t.outOfOrder {
		return pipelineLimit
	}
	return pipelineLimitInOrder
}

// recordReply takes down that the reply to c has come on l; t is locked.
func (t *streamTransport) recordReply(c *streamConn, q *query, now time.Time) {
	t.lastReply, c.movedOne = now, false
	if c.inFlight > int(c.lastSequence-q.sequence) { // more than there were after it
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

// deliverMessage is [streamConn.deliver], and what is learnt by it; t is locked.
func (t *streamTransport) deliverMessage(c *streamConn, msg []byte, now time.Time) bool {
	q, ok := c.deliver(msg, now)
	if q != nil {
		t.recordReply(c, q, now)
		q.complete(nil)
	}
	return ok
}
