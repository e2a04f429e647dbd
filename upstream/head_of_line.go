package upstream

import (
	"slices"
	"time"
)

const (
	// maxConnsInOrder is the maximum number of connections to a server that answers in order. Each slow name holds
	// one: at 2,000 queries per second, of which one in twenty takes 300 ms, that is 30 at a time.
	maxConnsInOrder = 256
	// maxConnsFewQueries is the same for a server that answers few queries per connection, or works on few at a time.
	maxConnsFewQueries = 32
	// pipelineLimitConnecting is how many queries wait for a connection before another one
	// is opened, while it is not known whether the server answers in order.
	pipelineLimitConnecting = 4
	// unansweredConnAfter is how long a new connection may be silent, while others bring
	// replies, before the server is believed not to have accepted it.
	unansweredConnAfter = time.Second
)

// pickConn returns the connection for the next query, and opens one if that is useful; nil
// if all are full. t is locked.
//
// A server that is not known to answer out of order gets the query on an idle connection.
// If there is none, another one is opened: one at a time, up to maxConns; one for each query,
// up to maxConnsInOrder, after a slow name has delayed the queries behind it. Queries share
// connections beyond that.
func (t *streamTransport) pickConn(now time.Time) *streamConn {
	t.forget(now)
	c := t.bestConn(now)
	if c == nil && t.closeOldestRetired(now) {
		c = t.bestConn(now) // resending its queries may have opened a connection
	}
	if len(t.live) < t.maxLive(c, now) && t.needsConn(c, now) && t.pause.err(now) == nil {
		t.misses.Add(1)
		if fresh := t.dial(now); c == nil || t.inOrder || t.rankOf(c, now) >= rankConnecting {
			return fresh
		}
	} else if c != nil {
		t.hits.Add(1)
	}
	return c
}

// bestConn returns the best connection for the next query, nil for none; t is locked.
func (t *streamTransport) bestConn(now time.Time) (best *streamConn) {
	t.retireExpired(now)
	for _, c := range t.open {
		if len(c.queries) < maxInFlightPerConn && !t.usedUp(c) && (best == nil || t.better(c, best, now)) {
			best = c
		}
	}
	return best
}

// better reports whether c is better for the next query than other, an older connection; t
// is locked. Equal ones are used in the order of their age, so that surplus ones expire.
func (t *streamTransport) better(c, other *streamConn, now time.Time) bool {
	r, s := t.rankOf(c, now), t.rankOf(other, now)
	n, m := t.load(c), t.load(other)
	switch {
	case t.connLimit > 0 && (c.replies > 0) != (other.replies > 0):
		return c.replies > 0
	case t.inOrder && max(r, s) < rankBlocked && n != m:
		return n < m
	case r != s:
		return r < s
	case t.outOfOrder:
		return m >= t.maxPipelined(now) && n < m
	case n != m:
		return n < m
	}
	return c.lessLikelySlow(other)
}

// lessLikelySlow reports whether a slow name is less likely on c than on other, which has as
// many queries: c has brought a reply, and has owed the next one for less time.
func (c *streamConn) lessLikelySlow(other *streamConn) bool {
	return len(c.queries) > 0 && c.replies > 0 && c.owedSince.After(other.owedSince)
}

// needsConn reports whether another connection should be opened if best is the best one; t
// is locked.
func (t *streamTransport) needsConn(best *streamConn, now time.Time) bool {
	if best == nil {
		return true
	}
	switch r, n := t.rankOf(best, now), t.load(best); {
	case r >= rankBlocked:
		return true
	case t.inOrder:
		return n > 0
	case r == rankConnecting:
		return !t.outOfOrder && n >= pipelineLimitConnecting
	case t.outOfOrder && n < t.maxPipelined(now), n == 0:
		return false
	}
	return !slices.ContainsFunc(t.open, func(c *streamConn) bool { return c.conn == nil })
}

// load returns how many queries occupy c: canceled ones, too, if the server may answer in
// order; t is locked.
func (t *streamTransport) load(c *streamConn) int {
	if t.outOfOrder {
		return c.inFlight
	}
	return len(c.queries)
}

// maxLive returns how many connections are allowed if best, nil for none, is the best one; t
// is locked. A server that has stopped answering altogether gets no more than maxConns.
func (t *streamTransport) maxLive(best *streamConn, now time.Time) int {
	n := maxConns
	switch {
	case !t.outOfOrder && now.Sub(t.lastReply) < stalledAfter && (t.inOrder || best != nil && t.rankOf(best, now) >= rankBlocked):
		n = maxConnsInOrder
	case t.queryLimit > 0, t.worksOnFew(now):
		n = maxConnsFewQueries
	}
	if t.connLimit > 0 {
		n = min(n, t.connLimit)
	}
	return n
}

// maxPipelined returns how many queries are in flight on a connection to a server that answers out of order before another
// one is opened; t is locked.
func (t *streamTransport) maxPipelined(now time.Time) int {
	if t.worksOnFew(now) {
		return fewInFlight
	}
	return pipelineLimit
}

// usedUp reports whether c has had as many queries as the server answers; t is locked.
func (t *streamTransport) usedUp(c *streamConn) bool {
	return t.queryLimit > 0 && int(c.lastSequence) >= t.queryLimit
}

// rankOf returns the rank of c, including head-of-line blocking; t is locked. A connection
// that the server may refuse counts as blocked.
func (t *streamTransport) rankOf(c *streamConn, now time.Time) rank {
	r := c.rank(now)
	if r == rankReady && t.headOfLineBlocked(c, now) || t.connLimit > 0 && c.replies == 0 {
		return max(r, rankBlocked)
	}
	return r
}

// headOfLineBlocked reports whether a slow name seems to delay the queries behind it on c;
// t is locked.
func (t *streamTransport) headOfLineBlocked(c *streamConn, now time.Time) bool {
	return !t.outOfOrder && len(c.queries) > 0 && c.replyOverdue(now) >= t.blockedAfter()
}

// scheduleBlockedCheck sets the timer of c to the time at which it would count as blocked,
// or as not accepted; t is locked.
func (t *streamTransport) scheduleBlockedCheck(c *streamConn, now time.Time) {
	at := c.owedSince.Add(unansweredConnAfter)
	switch {
	case c.conn == nil || c.closed || c.inFlight == 0:
		return
	case !t.outOfOrder && c.inFlight > 1:
		if at = c.owedSince.Add(t.blockedAfter()); !c.movedAt.IsZero() {
			at = c.movedAt.Add(stalledAfter)
		}
	case c.replies > 0:
		return
	}
	if !at.After(now) { // that has been checked, and nothing could be moved
		at = now.Add(minBlockedDelay)
	}
	c.wakeBy(at, now)
}

// moveBlocked moves queries that are blocked on c to other connections, if these are
// available: all of them if the server seems not to have accepted c, otherwise one; t is
// locked. The others follow when that one has been answered ([streamTransport.recordReply]),
// so a server that is slow with all queries gets no more of them. If it is not, its name may be slow, too: the next one
// moves after a while.
func (t *streamTransport) moveBlocked(c *streamConn, now time.Time) {
	switch {
	case c.conn == nil || c.inFlight == 0:
	case t.seemsNotAccepted(c, now):
		if t.notAccepted++; t.notAccepted > 1 { // a single one may have had a slow name
			t.limitConns(t.connected()-1, now)
		}
		t.closeConn(c, errNotAccepted, now)
		return
	case t.headOfLineBlocked(c, now) && now.Sub(c.movedAt) >= stalledAfter:
		if list := c.inFlightQueries(); len(list) > 1 && t.moveQuery(list[1], now) {
			list[1].movedFrom, c.movedAt = c, now
		}
	}
	t.scheduleBlockedCheck(c, now)
}

// seemsNotAccepted reports whether c has been silent since it was opened, while others have
// brought replies to later queries; t is locked. Replies to queries that were sent with its own say
// nothing: if all names are slow, its replies are about to arrive, too.
func (t *streamTransport) seemsNotAccepted(c *streamConn, now time.Time) bool {
	return c.replies == 0 && c.replyOverdue(now) >= unansweredConnAfter && t.lastAnswered.Sub(c.owedSince) >= unansweredConnAfter/2
}

// moveQuery sends q again on another connection, if one is available, and ignores its reply
// on the first; t is locked.
func (t *streamTransport) moveQuery(q *query, now time.Time) bool {
	from := q.conn
	if from.closed || q.resends >= maxStreamResends {
		return false
	}
	c := t.pickConn(now)
	if c == nil || c == from || from.closed || t.rankOf(c, now) >= rankBlocked || !t.mayResend() {
		return false
	}
	from.orphan(q)
	q.resends++
	t.assignTo(c, q, now)
	return true
}

// assignTo assigns q to c; a goroutine writes it. t is locked.
func (t *streamTransport) assignTo(c *streamConn, q *query, now time.Time) {
	c.add(q, now)
	t.scheduleBlockedCheck(c, now)
	if c.claimWrite() {
		t.tasks.Go(func() { t.write(c) })
	}
}

// takeWaiting lets c, if it is idle, take the query that waits for the longest for another
// connection; t is locked.
func (t *streamTransport) takeWaiting(c *streamConn, now time.Time) {
	if c.conn == nil || c.closed || c.retired || len(c.queries) > 0 || t.usedUp(c) {
		return
	}
	first := t.backlog.earliest(nil)
	for _, other := range t.open {
		if other.conn == nil {
			first = other.earliest(first)
		}
	}
	if first != nil {
		first.conn.remove(first)
		t.assignTo(c, first, now)
	}
}

// drainBacklog assigns the queries that wait until another connection may be opened; t is
// locked.
func (t *streamTransport) drainBacklog(now time.Time) {
	for t.backlog.inFlight > 0 && !t.closed {
		c := t.pickConn(now)
		err := t.pause.err(now)
		if c == nil && (err == nil || len(t.live) > 0) {
			return
		}
		q := t.backlog.earliest(nil)
		if c == nil {
			t.backlog.remove(q)
			q.complete(err)
			continue
		}
		t.backlog.remove(q)
		t.assignTo(c, q, now)
	}
}

// recordReply records that the reply to q, the end of the given silence, has arrived on c;
// t is locked.
func (t *streamTransport) recordReply(c *streamConn, q *query, silence time.Duration, now time.Time) {
	t.learnOrder(c, q, silence, now)
	if q.assignedAt.After(t.lastAnswered) {
		t.lastAnswered = q.assignedAt
	}
	if t.outOfOrder {
		t.observeWait(q.ahead, now.Sub(q.assignedAt), now)
	}
	if silence > 0 { // the first reply of several that have arrived together
		t.observeReply(silence, now)
		c.wasBlocked = silence >= t.blockedAfter()
	}
	c.movedAt = time.Time{}
	if c.replies == 1 {
		t.notAccepted = 0
		t.pause.end()
	}
	t.scheduleBlockedCheck(c, now) // the next name may be slow, too
	t.moveRest(q, now)
}

// learnOrder records what the reply to q on c, after the given silence, shows about the
// order in which the server answers; t is locked.
func (t *streamTransport) learnOrder(c *streamConn, q *query, silence time.Duration, now time.Time) {
	switch {
	case c.inFlight > int(c.lastSequence-q.sequence): // more than were sent after q, so an earlier one is unanswered
		t.setOrder(true, now)
	case c.wasBlocked && silence < time.Millisecond && now.Sub(q.assignedAt) >= t.blockedAfter(): // it has waited for the slow name before it
		if t.outOfOrder = false; now.After(t.quietUntil) {
			t.setOrder(false, now)
		}
	}
}

// moveRest moves the queries that are still blocked on the connection from which q, which
// has been answered, was moved; t is locked.
func (t *streamTransport) moveRest(q *query, now time.Time) {
	from := q.movedFrom
	if from == nil || from.movedAt.IsZero() || from.closed || !t.headOfLineBlocked(from, now) {
		return
	}
	t.setOrder(false, now)
	for _, blocked := range from.inFlightQueries()[min(1, from.inFlight):] {
		if from.closed || !t.moveQuery(blocked, now) {
			return
		}
	}
}

// learnFromEnd records what the end of c, which is no longer in live, with err shows about
// the server; t is locked.
func (t *streamTransport) learnFromEnd(c *streamConn, err error, now time.Time) {
	n := t.connected()
	if n == 0 {
		t.connLimit = 0 // the server may have been restarted
	}
	switch {
	case isLocal(err):
	case c.replies == 0:
		t.learnWithoutReply(c, n, err, now)
	case c.inFlight > 0 && t.pause.failures == 0 && now.Sub(c.repliedAt) < promptClose:
		t.observeEnd(c.replies, c.openedAt, now)
	}
}

// learnWithoutReply is learnFromEnd for a connection without a reply, beside n others; t is locked.
func (t *streamTransport) learnWithoutReply(c *streamConn, n int, err error, now time.Time) {
	if n > 0 {
		t.limitConns(n, now)
	}
	switch {
	case c.conn != nil && c.inFlight > 0:
		t.pause.startUnlessFirst(err, now)
	case c.conn == nil && isUnreachable(err): // it is away: the ends of connections were no limits
		t.queryLimit, t.endedAfter, t.endedAt = 0, 0, time.Time{}
	}
}

// connected returns the number of connections that are established; t is locked.
func (t *streamTransport) connected() (n int) {
	for c := range t.live {
		if c.conn != nil {
			n++
		}
	}
	return n
}

// answering reports whether c or a connection that takes queries has brought a reply; t is
// locked.
func (t *streamTransport) answering(c *streamConn) bool {
	return c.replies > 0 || slices.ContainsFunc(t.open, func(c *streamConn) bool { return c.replies > 0 })
}

// deliverMessage calls [streamConn.deliver] and completes the query; t is locked.
func (t *streamTransport) deliverMessage(c *streamConn, msg []byte, now time.Time) bool {
	silence := c.replyOverdue(now)
	q, ok := c.deliver(msg, now)
	if q != nil {
		t.recordReply(c, q, silence, now)
		if q.claimReply() {
			c.claimed = append(c.claimed, q)
		} else {
			q.complete(nil)
		}
	}
	return ok
}
