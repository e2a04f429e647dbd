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

// places is how many connections there may be where best is the best of them, nil for
// none; t is locked. A server from which nothing comes gets no more than usual.
func (t *stream) places(best *link, now time.Time) int {
	if best != nil && t.rank(best, now) >= held && !t.anyTurn && now.Sub(t.heard) < doubt {
		return maxHeld
	}
	return maxLinks
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

// relieve takes one of the queries that are held up behind a slow name on l elsewhere, if
// there is a place; t is locked. When that has been answered the others follow it
// ([stream.learn]): a server that is slow with all of them is asked for no more.
func (t *stream) relieve(l *link, now time.Time) {
	switch {
	case l.conn == nil || !t.held(l, now):
		t.watch(l, now)
	case !l.sampled:
		if list := l.behind(); len(list) > 0 && t.move(list[0], now) {
			list[0].from, l.sampled = l, true
		}
	}
}

// move asks c's query once more on another connection, if there is a place; t is locked.
// What comes of the first time is dropped.
func (t *stream) move(c *call, now time.Time) bool {
	if c.resent == maxResends {
		return false
	}
	l := t.find(now)
	if l == nil || l == c.link || t.rank(l, now) >= held {
		return false
	}
	c.link.abandon(c)
	c.resent++
	l.put(c, now)
	t.watch(l, now)
	if l.claim() {
		t.tasks.Go(func() { t.write(l) })
	}
	return true
}

// behind gives the calls that were put on l after another one that is still in flight, in
// the order in which they were.
func (l *link) behind() (list []*call) {
	for _, c := range l.ids {
		if c != nil {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *call) int { return int(int32(a.turn - b.turn)) })
	return list[min(1, len(list)):]
}

// crowded is how many queries in flight are too many; t is locked.
func (t *stream) crowded() int {
	if t.anyTurn {
		return crowd
	}
	return queue
}

// learn takes down that the reply to c has come on l; t is locked.
func (t *stream) learn(l *link, c *call, now time.Time) {
	t.heard, l.sampled = now, false
	if l.flying > int(l.turns-c.turn) { // more than there were after it
		t.anyTurn = true
	}
	if from := c.from; from != nil && from.sampled && !from.dead && t.held(from, now) {
		for _, c := range from.behind() {
			if !t.move(c, now) {
				break
			}
		}
	}
	switch took := now.Sub(c.boarded); {
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
		t.learn(l, c, now)
		c.land(nil)
	}
	return ok
}
