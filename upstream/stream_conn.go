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
func (l *streamConn) rank(now time.Time) rank {
	switch {
	case l.replyOverdue(now) >= stalledAfter:
		return rankStalled
	case l.conn == nil:
		return rankConnecting
	}
	return rankReady
}

// replyOverdue is for how long a reply is owed.
func (l *streamConn) replyOverdue(now time.Time) time.Duration {
	if l.owedSince.IsZero() {
		return 0
	}
	return now.Sub(l.owedSince)
}

// add takes c in, under an ID that no other query here has, and queues the query.
func (l *streamConn) add(c *query, now time.Time) {
	for {
		if _, taken := l.queries[c.sentID()]; !taken {
			break
		}
		c.replaceID()
	}
	l.queries[c.sentID()] = c
	l.inFlight++
	l.division.Add(c.client)
	l.lastSequence++
	c.conn, c.sequence, c.assignedAt = l, l.lastSequence, now
	if l.owedSince.IsZero() {
		l.owedSince = now
	}
	l.wakeBy(c.deadline, now)
	if l.conn != nil {
		l.writeBuf = append(l.writeBuf, c.frame...)
	}
}

// wakeBy makes the timer ring at at the latest.
func (l *streamConn) wakeBy(at, now time.Time) {
	if l.timerAt.IsZero() || at.Before(l.timerAt) {
		l.timerAt = at
		l.timer.Reset(at.Sub(now))
	}
}

// setConn queues the queries that have waited for conn. What nobody waits for any
// more is not sent.
func (l *streamConn) setConn(conn net.Conn) {
	l.conn = conn
	for id, c := range l.queries {
		if c == nil {
			delete(l.queries, id)
			l.orphans--
			continue
		}
		l.writeBuf = append(l.writeBuf, c.frame...)
	}
	now := time.Now()
	l.owedSince, l.idleSince = time.Time{}, now // as far as it is idle
	if l.inFlight > 0 {
		l.owedSince = now
	}
}

// remove takes c out, whose ID becomes free.
func (l *streamConn) remove(c *query) {
	delete(l.queries, c.sentID())
	l.inFlight--
	l.division.Remove(c.client)
	c.conn = nil
}

// orphan takes c out, to whose query a reply may come still.
func (l *streamConn) orphan(c *query) {
	l.queries[c.sentID()] = nil
	l.orphans++
	l.inFlight--
	l.division.Remove(c.client)
	c.conn = nil
}

// removeAll takes all calls out and gives them.
func (l *streamConn) removeAll() []*query {
	calls := make([]*query, 0, l.inFlight)
	for _, c := range l.queries {
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
func (l *streamConn) deliver(msg []byte, now time.Time) (c *query, ok bool) {
	if len(msg) < headerLen {
		return nil, false
	}
	id := binary.BigEndian.Uint16(msg)
	c, known := l.queries[id]
	switch {
	case !known, msg[2]&qrBit == 0:
		return nil, false
	case c == nil:
		delete(l.queries, id)
		l.orphans--
	case !c.matches(msg):
		return nil, false
	default:
		c.growReply(len(msg))
		c.replyLen = copy(c.reply, msg)
		l.remove(c)
	}
	l.answered = true
	l.owedSince = time.Time{}
	if len(l.queries) > 0 {
		l.owedSince = now
	}
	return c, true
}

// expire ends the flights whose time is over at now, and gives their number.
func (l *streamConn) expire(now time.Time) (n int) {
	l.timerAt = time.Time{}
	for _, c := range l.queries {
		switch {
		case c == nil:
		case !c.deadline.After(now):
			l.orphan(c)
			c.complete(os.ErrDeadlineExceeded)
			n++
		case l.timerAt.IsZero() || c.deadline.Before(l.timerAt):
			l.timerAt = c.deadline
		}
	}
	if !l.timerAt.IsZero() {
		l.timer.Reset(l.timerAt.Sub(now))
	}
	return n
}

// release gives back what l holds. The calls in flight stay.
func (l *streamConn) release() {
	l.closed = true
	l.timer.Stop()
	l.cancel()
	if l.conn != nil {
		l.conn.Close() // does not block: nothing is written that a pipe has no place for
	}
	l.writeBuf, l.spareBuf = nil, nil
}

// claimWrite reports whether the caller is to write what is queued.
func (l *streamConn) claimWrite() bool {
	if l.writing || l.conn == nil || l.closed || len(l.writeBuf) == 0 {
		return false
	}
	l.writing = true
	return true
}

// write writes what is queued on l, which the caller has claimed. What others queue
// meanwhile is written by a goroutine of its own: the caller has a reply to wait for.
func (t *streamTransport) write(l *streamConn) {
	if t.flush(l) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !l.closed { // so that close waits for it
			t.tasks.Go(func() {
				for t.flush(l) {
				}
			})
		}
	}
}

// flush writes once, and reports whether more is queued. It does not block.
func (t *streamTransport) flush(l *streamConn) (more bool) {
	t.mu.Lock()
	if l.inFlight >= yieldAbove && len(l.writeBuf) < maxKeptWriteBuf {
		t.mu.Unlock()
		runtime.Gosched()
		t.mu.Lock()
	}
	if l.closed || len(l.writeBuf) == 0 {
		l.writing = false
		t.mu.Unlock()
		return false
	}
	b, conn := l.writeBuf, l.conn
	l.writeBuf = l.spareBuf
	t.mu.Unlock()
	_, err := conn.Write(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.closed {
		return false
	}
	l.spareBuf = nil
	if cap(b) <= maxKeptWriteBuf {
		l.spareBuf = b[:0]
	}
	if err != nil {
		t.closeConn(l, err, time.Now())
		return false
	}
	l.writing = len(l.writeBuf) > 0
	return l.writing
}
