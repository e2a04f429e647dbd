package upstream

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

const (
	// gather is how many queries a connection has in flight when who writes makes
	// place first, so that others that are about to ask queue theirs, for one write
	// and one TLS record. With half, nobody may be there and the way through the
	// scheduler is for nothing; with double, the calls saved begin later.
	gather = 8
	// keepOut is the longest buffer for queries kept for the next write: what half
	// of a connection's queries fill. More is of bursts.
	keepOut = 32 << 10
)

// link is one connection of a [stream], from the first query that wants it to its
// end. The stream's lock guards it, but for what the reader alone uses.
type link struct {
	conn   net.Conn // nil until it is connected
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer
	// alarm is when the timer rings; zero is never.
	alarm time.Time

	since time.Time // when it was begun
	// idle is since when nothing is in flight; it means nothing while there is, and
	// is zero before it is connected.
	idle time.Time
	// owed is since when a reply is owed and none has come; zero if none is.
	owed time.Time
	// answered says that a reply has come.
	answered bool
	// retired links get no more queries, and end once none is in flight.
	retired bool
	dead    bool
	strays  int

	// ids are the IDs in use. Those of calls that nobody waits for any more have nil.
	ids    map[uint16]*call
	flying int             // the calls in ids
	all    *share.Division // the calls of all links of the stream
	lost   int             // the nils
	turns  uint32          // the queries there have been
	// sampled says that a query was taken elsewhere since the last reply.
	sampled bool

	// out is the queries to be written, framed. writing says that somebody has claimed
	// that; spare is the buffer he leaves behind.
	out, spare []byte
	writing    bool
}

func newLink(now time.Time, all *share.Division) *link {
	return &link{since: now, ids: make(map[uint16]*call), all: all}
}

// The ranks of links, the best first.
type rank uint8

const (
	ready   rank = iota // connected
	making              // not connected yet
	held                // a slow name seems to hold up what is behind it, see [stream.held]
	doubted             // a reply is owed for too long
)

// rank is that of l as it shows by itself.
func (l *link) rank(now time.Time) rank {
	switch {
	case l.silent(now) >= doubt:
		return doubted
	case l.conn == nil:
		return making
	}
	return ready
}

// silent is for how long a reply is owed.
func (l *link) silent(now time.Time) time.Duration {
	if l.owed.IsZero() {
		return 0
	}
	return now.Sub(l.owed)
}

// put takes c in, under an ID that no other query here has, and queues the query.
func (l *link) put(c *call, now time.Time) {
	for {
		if _, taken := l.ids[c.sentID()]; !taken {
			break
		}
		c.redraw()
	}
	l.ids[c.sentID()] = c
	l.flying++
	l.all.Add(c.client)
	l.turns++
	c.link, c.turn, c.boarded = l, l.turns, now
	if l.owed.IsZero() {
		l.owed = now
	}
	l.wake(c.until, now)
	if l.conn != nil {
		l.out = append(l.out, c.frame...)
	}
}

// wake makes the timer ring at at the latest.
func (l *link) wake(at, now time.Time) {
	if l.alarm.IsZero() || at.Before(l.alarm) {
		l.alarm = at
		l.timer.Reset(at.Sub(now))
	}
}

// connected queues the queries that have waited for conn. What nobody waits for any
// more is not sent.
func (l *link) connected(conn net.Conn) {
	l.conn = conn
	for id, c := range l.ids {
		if c == nil {
			delete(l.ids, id)
			l.lost--
			continue
		}
		l.out = append(l.out, c.frame...)
	}
	now := time.Now()
	l.owed, l.idle = time.Time{}, now // as far as it is idle
	if l.flying > 0 {
		l.owed = now
	}
}

// remove takes c out, whose ID becomes free.
func (l *link) remove(c *call) {
	delete(l.ids, c.sentID())
	l.flying--
	l.all.Remove(c.client)
	c.link = nil
}

// abandon takes c out, to whose query a reply may come still.
func (l *link) abandon(c *call) {
	l.ids[c.sentID()] = nil
	l.lost++
	l.flying--
	l.all.Remove(c.client)
	c.link = nil
}

// leave takes all calls out and gives them.
func (l *link) leave() []*call {
	calls := make([]*call, 0, l.flying)
	for _, c := range l.ids {
		if c != nil {
			calls = append(calls, c)
		}
	}
	for _, c := range calls {
		l.remove(c)
	}
	return calls
}

// deliver takes out the call that msg is the reply to, which is to land with the copy of
// msg in it, or drops a reply that comes too late; false if msg is neither.
func (l *link) deliver(msg []byte, now time.Time) (c *call, ok bool) {
	if len(msg) < headerLen {
		return nil, false
	}
	id := binary.BigEndian.Uint16(msg)
	c, known := l.ids[id]
	switch {
	case !known, msg[2]&qrBit == 0:
		return nil, false
	case c == nil:
		delete(l.ids, id)
		l.lost--
	case !c.answeredBy(msg):
		return nil, false
	default:
		c.room(len(msg))
		c.got = copy(c.reply, msg)
		l.remove(c)
	}
	l.answered = true
	l.owed = time.Time{}
	if len(l.ids) > 0 {
		l.owed = now
	}
	return c, true
}

// expire ends the flights whose time is over at now, and gives their number.
func (l *link) expire(now time.Time) (n int) {
	l.alarm = time.Time{}
	for _, c := range l.ids {
		switch {
		case c == nil:
		case !c.until.After(now):
			l.abandon(c)
			c.land(os.ErrDeadlineExceeded)
			n++
		case l.alarm.IsZero() || c.until.Before(l.alarm):
			l.alarm = c.until
		}
	}
	if !l.alarm.IsZero() {
		l.timer.Reset(l.alarm.Sub(now))
	}
	return n
}

// end gives back what l holds. The calls in flight stay.
func (l *link) end() {
	l.dead = true
	l.timer.Stop()
	l.cancel()
	if l.conn != nil {
		l.conn.Close() // does not block: nothing is written that a pipe has no place for
	}
	l.out, l.spare = nil, nil
}

// claim reports whether the caller is to write what is queued.
func (l *link) claim() bool {
	if l.writing || l.conn == nil || l.dead || len(l.out) == 0 {
		return false
	}
	l.writing = true
	return true
}

// write writes what is queued on l, which the caller has claimed. What others queue
// meanwhile is written by a goroutine of its own: the caller has a reply to wait for.
func (t *stream) write(l *link) {
	if t.flush(l) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !l.dead { // so that close waits for it
			t.tasks.Go(func() {
				for t.flush(l) {
				}
			})
		}
	}
}

// flush writes once, and reports whether more is queued. It does not block.
func (t *stream) flush(l *link) (more bool) {
	t.mu.Lock()
	if l.flying >= gather && len(l.out) < keepOut {
		t.mu.Unlock()
		runtime.Gosched()
		t.mu.Lock()
	}
	if l.dead || len(l.out) == 0 {
		l.writing = false
		t.mu.Unlock()
		return false
	}
	b, conn := l.out, l.conn
	l.out = l.spare
	t.mu.Unlock()
	_, err := conn.Write(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.dead {
		return false
	}
	l.spare = nil
	if cap(b) <= keepOut {
		l.spare = b[:0]
	}
	if err != nil {
		t.lose(l, err, time.Now())
		return false
	}
	l.writing = len(l.out) > 0
	return l.writing
}
