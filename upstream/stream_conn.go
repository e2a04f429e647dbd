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
	// yieldAbove is how many queries a connection has in flight when who writes makes
	// place first, so that others that are about to ask queue theirs, for one write
	// and one TLS record. With half, nobody may be there and the way through the
	// scheduler is for nothing; with double, the calls saved begin later.
	yieldAbove = 8
	// maxKeptWriteBuf is the longest buffer for queries kept for the next write: what half
	// of a connection's queries fill. More is of bursts.
	maxKeptWriteBuf = 32 << 10
)

// streamConn is one connection of a [streamTransport], from the first query that wants it to its
// end. The stream's lock guards it, but for what the reader alone uses.
type streamConn struct {
	conn   net.Conn // nil until it is connected
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer
	// timerAt is when the timer rings; zero is never.
	timerAt time.Time

	begunAt time.Time // when it was begun
	// idleSince is since when nothing is in flight; it means nothing while there is, and
	// is zero before it is connected.
	idleSince time.Time
	// owedSince is since when a reply is owed and none has come; zero if none is.
	owedSince time.Time
	// answered says that a reply has come.
	answered bool
	// retired links get no more queries, and end once none is in flight.
	retired    bool
	closed     bool
	unexpected int

	// queries are the IDs in use. Those of calls that nobody waits for any more have nil.
	queries      map[uint16]*query
	inFlight     int             // the calls in ids
	division     *share.Division // the calls of all links of the stream
	orphans      int             // the nils
	lastSequence uint32          // the queries there have been
	// movedOne says that a query was taken elsewhere since the last reply.
	movedOne bool

	// writeBuf is the queries to be written, framed. writing says that somebody has claimed
	// that; spare is the buffer he leaves behind.
	writeBuf, spareBuf []byte
	writing            bool
}

func newStreamConn(now time.Time, all *share.Division) *streamConn {
	return &streamConn{begunAt: now, queries: make(map[uint16]*query), division: all}
}

// The ranks of links, the best first.
type rank uint8

const (
	rankReady      rank = iota // connected
	rankConnecting             // not connected yet
	rankBlocked                // a slow name seems to hold up what is behind it, see [streamTransport.clientInFlight]
	rankStalled                // a reply is owed for too long
)

// rank is that of l as it shows by itself.
func (c *streamConn) rank(now time.Time) rank {
	switch {
	case c.replyOverdue(now) >= stalledAfter:
		return rankStalled
	case c.conn == nil:
		return rankConnecting
	}
	return rankReady
}

// replyOverdue is for how long a reply is owed.
func (c *streamConn) replyOverdue(now time.Time) time.Duration {
	if c.owedSince.IsZero() {
		return 0
	}
	return now.Sub(c.owedSince)
}

// add takes c in, under an ID that no other query here has, and queues the query.
func (c *streamConn) add(q *query, now time.Time) {
	for {
		if _, taken := c.queries[q.sentID()]; !taken {
			break
		}
		q.replaceID()
	}
	c.queries[q.sentID()] = q
	c.inFlight++
	c.division.Add(q.client)
	c.lastSequence++
	q.conn, q.sequence, q.assignedAt = c, c.lastSequence, now
	if c.owedSince.IsZero() {
		c.owedSince = now
	}
	c.wakeBy(q.deadline, now)
	if c.conn != nil {
		c.writeBuf = append(c.writeBuf, q.frame...)
	}
}

// wakeBy makes the timer ring at at the latest.
func (c *streamConn) wakeBy(at, now time.Time) {
	if c.timerAt.IsZero() || at.Before(c.timerAt) {
		c.timerAt = at
		c.timer.Reset(at.Sub(now))
	}
}

// setConn queues the queries that have waited for conn. What nobody waits for any
// more is not sent.
func (c *streamConn) setConn(conn net.Conn) {
	c.conn = conn
	for id, q := range c.queries {
		if q == nil {
			delete(c.queries, id)
			c.orphans--
			continue
		}
		c.writeBuf = append(c.writeBuf, q.frame...)
	}
	now := time.Now()
	c.owedSince, c.idleSince = time.Time{}, now // as far as it is idle
	if c.inFlight > 0 {
		c.owedSince = now
	}
}

// remove takes c out, whose ID becomes free.
func (c *streamConn) remove(q *query) {
	delete(c.queries, q.sentID())
	c.inFlight--
	c.division.Remove(q.client)
	q.conn = nil
}

// orphan takes c out, to whose query a reply may come still.
func (c *streamConn) orphan(q *query) {
	c.queries[q.sentID()] = nil
	c.orphans++
	c.inFlight--
	c.division.Remove(q.client)
	q.conn = nil
}

// removeAll takes all calls out and gives them.
func (c *streamConn) removeAll() []*query {
	calls := make([]*query, 0, c.inFlight)
	for _, q := range c.queries {
		if q != nil {
			calls = append(calls, q)
		}
	}
	for _, q := range calls {
		c.remove(q)
	}
	return calls
}

// deliver takes out the call that msg is the reply to, which is to land with the copy of
// msg in it, or drops a reply that comes too late; false if msg is neither.
func (c *streamConn) deliver(msg []byte, now time.Time) (q *query, ok bool) {
	if len(msg) < headerLen {
		return nil, false
	}
	id := binary.BigEndian.Uint16(msg)
	q, known := c.queries[id]
	switch {
	case !known, msg[2]&qrBit == 0:
		return nil, false
	case q == nil:
		delete(c.queries, id)
		c.orphans--
	case !q.matches(msg):
		return nil, false
	default:
		q.growReply(len(msg))
		q.replyLen = copy(q.reply, msg)
		c.remove(q)
	}
	c.answered = true
	c.owedSince = time.Time{}
	if len(c.queries) > 0 {
		c.owedSince = now
	}
	return q, true
}

// expire ends the flights whose time is over at now, and gives their number.
func (c *streamConn) expire(now time.Time) (n int) {
	c.timerAt = time.Time{}
	for _, q := range c.queries {
		switch {
		case q == nil:
		case !q.deadline.After(now):
			c.orphan(q)
			q.complete(os.ErrDeadlineExceeded)
			n++
		case c.timerAt.IsZero() || q.deadline.Before(c.timerAt):
			c.timerAt = q.deadline
		}
	}
	if !c.timerAt.IsZero() {
		c.timer.Reset(c.timerAt.Sub(now))
	}
	return n
}

// release gives back what l holds. The calls in flight stay.
func (c *streamConn) release() {
	c.closed = true
	c.timer.Stop()
	c.cancel()
	if c.conn != nil {
		c.conn.Close() // does not block: nothing is written that a pipe has no place for
	}
	c.writeBuf, c.spareBuf = nil, nil
}

// claimWrite reports whether the caller is to write what is queued.
func (c *streamConn) claimWrite() bool {
	if c.writing || c.conn == nil || c.closed || len(c.writeBuf) == 0 {
		return false
	}
	c.writing = true
	return true
}

// write writes what is queued on l, which the caller has claimed. What others queue
// meanwhile is written by a goroutine of its own: the caller has a reply to wait for.
func (t *streamTransport) write(c *streamConn) {
	if t.flush(c) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !c.closed { // so that close waits for it
			t.tasks.Go(func() {
				for t.flush(c) {
				}
			})
		}
	}
}

// flush writes once, and reports whether more is queued. It does not block.
func (t *streamTransport) flush(c *streamConn) (more bool) {
	t.mu.Lock()
	if c.inFlight >= yieldAbove && len(c.writeBuf) < maxKeptWriteBuf {
		t.mu.Unlock()
		runtime.Gosched()
		t.mu.Lock()
	}
	if c.closed || len(c.writeBuf) == 0 {
		c.writing = false
		t.mu.Unlock()
		return false
	}
	b, conn := c.writeBuf, c.conn
	c.writeBuf = c.spareBuf
	t.mu.Unlock()
	_, err := conn.Write(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.closed {
		return false
	}
	c.spareBuf = nil
	if cap(b) <= maxKeptWriteBuf {
		c.spareBuf = b[:0]
	}
	if err != nil {
		t.closeConn(c, err, time.Now())
		return false
	}
	c.writing = len(c.writeBuf) > 0
	return c.writing
}
