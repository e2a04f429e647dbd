package upstream

import (
	"slices"
	"time"
)

// rank says how good it is to put a query on l; t is locked.
func (t *stream) rank(l *link, now time.Time) rank {
	r := l.rank(now)
	if r == ready && t.held(l, now) {
		return held
	}
	return r
}

const (
	// maxHeld is the connections to a server that answers one query after the other
	// (see [stream.held]) while all others wait for slow names there. Half of it would
	// have sixteen slow names hold up all others; double is more than a server expects
	// of one client.
	maxHeld = 32
	// queue is as [crowd] where the server may take one query after the other: each is
	// then behind all others. Half of it would spread the queries of an ordinary second
	// over all connections; with double they wait for twice as many.
	queue = 16
	// heldFloor is the least silence that makes a connection one that is held up: longer
	// than a reply waits on a busy machine until somebody reads it. With half of it our
	// own pauses open connections; with double twice as many queries are behind a slow
	// one.
	heldFloor = 20 * time.Millisecond
	// heldUsuals is the same in the usual times of a reply: a resolver that answers
	// what it knows in one and what it does not in four has answered out of turn
	// before. With half of it a far server is held up by its distance.
	heldUsuals = 4
	// usualStep is the step of the usual time's estimate, as a part of it: it doubles
	// with eleven longer times in a row. Half is as slow again, with double it swings by
	// a quarter.
	usualStep = 16
)

// held reports whether a slow name seems to hold up what is behind it on l; t is locked.
func (t *stream) held(l *link, now time.Time) bool {
	return !t.anyTurn && l.flying > 0 && l.silent(now) >= t.patient()
}

// patient is how long a connection may be silent before that speaks of a slow name; t is
// locked.
func (t *stream) patient() time.Duration { return max(heldFloor, heldUsuals*t.usual) }

// watch has l looked after when a slow name may hold up others there; t is locked.
func (t *stream) watch(l *link, now time.Time) {
	if !t.anyTurn && l.flying > 1 && l.conn != nil && !l.dead {
		l.wake(l.owed.Add(t.patient()), now)
	}
}

// relieve takes what is held up behind a slow name on l elsewhere, if there is a place;
// t is locked. The queries are asked once more there, and what comes of the first time
// is dropped.
func (t *stream) relieve(l *link, now time.Time) {
	if l.conn == nil || !t.held(l, now) {
		t.watch(l, now)
		return
	}
	for _, c := range l.behind() {
		if c.resent == maxResends {
			continue
		}
		other := t.find(now)
		if other == nil || other == l || t.rank(other, now) >= held {
			return
		}
		l.abandon(c)
		c.resent++
		other.put(c, now)
		t.watch(other, now)
		if other.claim() {
			t.tasks.Go(func() { t.write(other) })
		}
	}
}

// behind gives the calls that were put on l after another one that is still in flight.
func (l *link) behind() (list []*call) {
	var first *call
	for _, c := range l.ids {
		if c == nil {
			continue
		}
		if first == nil || int32(c.turn-first.turn) < 0 {
			first = c
		}
		list = append(list, c)
	}
	return slices.DeleteFunc(list, func(c *call) bool { return c == first })
}

// crowded is how many queries in flight are too many; t is locked.
func (t *stream) crowded() int {
	if t.anyTurn {
		return crowd
	}
	return queue
}

// learn takes down that the reply to the query that was the turn-th on l has come, after
// took; t is locked.
func (t *stream) learn(l *link, turn uint32, took time.Duration, now time.Time) {
	t.heard = now
	if l.flying > int(l.turns-turn) { // more than there were after it
		t.anyTurn = true
	}
	switch {
	case t.usual == 0:
		t.usual = max(took, time.Microsecond)
	case took > t.usual:
		t.usual += t.usual/usualStep + 1
	default:
		t.usual -= t.usual / usualStep
	}
}

// deliverTo is [link.deliver], and what is learnt by it; t is locked.
func (t *stream) deliverTo(l *link, msg []byte, now time.Time) bool {
	c, ok := l.deliver(msg, now)
	if c != nil {
		t.learn(l, c.turn, now.Sub(c.boarded), now)
		c.land(nil)
	}
	return ok
}
