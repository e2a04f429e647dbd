package upstream

import "time"

const (
	// orderLifetime is how long it is believed that a server answers in order, or out of
	// order: another server may have taken its address, or its configuration may have
	// changed.
	orderLifetime = time.Minute
	// limitLifetime is how long a limit of a server is believed. Finding it out again costs
	// a few queries a second sending.
	limitLifetime = 10 * time.Second
	// promptClose is how soon after a reply a server closes a connection that has had its
	// number of queries. A connection that was silent for longer has been idle for too long.
	promptClose = 100 * time.Millisecond
	// minBlockedDelay is the shortest silence after which a connection counts as blocked.
	// It is longer than a reply waits for its reader on a busy machine.
	minBlockedDelay = 20 * time.Millisecond
	// blockedRTTs is the same in multiples of the typical RTT. A resolver for which a cache
	// miss takes four times as long as a hit has answered out of order before.
	blockedRTTs = 4
	// typicalRTTStep is the inverse step of the estimate of the typical RTT, which doubles
	// after eleven longer samples in a row.
	typicalRTTStep = 16
	// fewInFlight is how many queries any server works on at a time on one connection; PowerDNS Recursor on ten.
	fewInFlight = 8
	// crowdedReplies is how many more replies behind fewInFlight queries have to be late than in time before the server
	// is believed to work on few at a time.
	crowdedReplies = 32
)

// learned is what the replies and the ends of connections have shown about a server. The
// lock of the [streamTransport] guards it.
type learned struct {
	// outOfOrder says that the server has answered a query before an earlier one; inOrder
	// that a slow name has delayed the queries behind it. At most one of them is set.
	outOfOrder, inOrder bool
	orderUntil          time.Time // when that lapses; zero: never
	// typicalRTT estimates the median time that a connection with queries in flight is
	// silent; 0 without samples.
	typicalRTT time.Duration
	lastReply  time.Time // of any connection
	// lastAnswered is when the query that was sent last, of those with a reply, was sent.
	lastAnswered time.Time
	// quietUntil is until when replies say little about the order, because all connections
	// were silent: the machine may have been too busy to read them.
	quietUntil time.Time
	// queryLimit is how many queries the server answers on a connection; 0: no limit is
	// known.
	queryLimit      int
	queryLimitUntil time.Time
	// endedAfter and endedAt are the replies and the end of a connection that hints at one.
	endedAfter int
	endedAt    time.Time
	// connLimit is how many connections the server accepts; 0: no limit is known.
	connLimit      int
	connLimitUntil time.Time
	// notAccepted is how many new connections in a row brought no reply while others did.
	notAccepted int
	// soonRTT estimates the median time until the reply to a query with fewer than fewInFlight others before it, crowded
	// counts replies to those with more: up if they are late, down if not.
	soonRTT time.Duration
	crowded int
	// fewUntil is until when worksOnFew is true.
	fewUntil time.Time
}

// observeWait records that a server that answers out of order has answered a query, which had ahead others before it on
// its connection, after that time.
func (l *learned) observeWait(ahead int, took time.Duration, now time.Time) {
	switch late := blockedRTTs * max(l.soonRTT, minBlockedDelay/blockedRTTs); {
	case ahead < fewInFlight:
		l.soonRTT = nearer(l.soonRTT, took)
	case l.soonRTT == 0:
	case took < late:
		l.crowded = max(l.crowded-1, 0)
	default:
		if l.crowded = min(l.crowded+1, crowdedReplies); l.crowded == crowdedReplies {
			l.fewUntil = now.Add(orderLifetime)
		}
	}
}

// worksOnFew reports whether the server is believed to work on fewInFlight queries of a connection at a time.
func (l *learned) worksOnFew(now time.Time) bool { return now.Before(l.fewUntil) }

// nearer returns an estimate of a median, moved towards a sample.
func nearer(median, sample time.Duration) time.Duration {
	switch {
	case median == 0:
		return max(sample, time.Microsecond)
	case sample > median:
		return median + median/typicalRTTStep + 1
	}
	return median - median/typicalRTTStep
}

// setOrder records whether the server has just been seen to answer out of order.
func (l *learned) setOrder(outOfOrder bool, now time.Time) {
	l.outOfOrder, l.inOrder, l.orderUntil = outOfOrder, !outOfOrder, now.Add(orderLifetime)
}

// forget drops what has lapsed.
func (l *learned) forget(now time.Time) {
	if !l.orderUntil.IsZero() && !now.Before(l.orderUntil) {
		l.outOfOrder, l.inOrder, l.orderUntil = false, false, time.Time{}
	}
	if l.queryLimit > 0 && !now.Before(l.queryLimitUntil) {
		l.endedAfter, l.endedAt = l.queryLimit, now
		l.queryLimit = 0
	}
	if l.connLimit > 0 && !now.Before(l.connLimitUntil) {
		l.connLimit = 0
	}
}

// blockedAfter returns how long a connection may be silent before it counts as blocked.
func (l *learned) blockedAfter() time.Duration {
	return min(max(minBlockedDelay, blockedRTTs*l.typicalRTT), stalledAfter)
}

// observeReply records a reply that ended the given silence of its connection.
func (l *learned) observeReply(silence time.Duration, now time.Time) {
	if now.Sub(l.lastReply) >= orderLifetime {
		l.typicalRTT = 0
	}
	l.typicalRTT = nearer(l.typicalRTT, silence)
	if now.Sub(l.lastReply) >= minBlockedDelay/2 {
		l.quietUntil = now.Add(minBlockedDelay / 2)
	}
	l.lastReply = now
}

// observeEnd records that the server has closed a connection, begun at the given time, right
// after its n-th reply, and left queries unanswered (RFC 7766, 6.2.4). Once it may have
// been restarted. Twice after as many replies, or on a connection begun after the first
// such end, is a limit.
func (l *learned) observeEnd(n int, begun, now time.Time) {
	l.forget(now)
	again := now.Sub(l.endedAt) < limitLifetime && (n == l.endedAfter || begun.After(l.endedAt))
	switch {
	case l.queryLimit > 0:
		n = min(n, l.queryLimit)
	case again:
		n = min(n, l.endedAfter)
	default:
		l.endedAfter, l.endedAt = n, now
		return
	}
	l.queryLimit, l.queryLimitUntil = n, now.Add(limitLifetime)
}

// limitConns records that the server does not accept more than n connections.
func (l *learned) limitConns(n int, now time.Time) {
	l.connLimit, l.connLimitUntil = max(n, 1), now.Add(limitLifetime)
}
