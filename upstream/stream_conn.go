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
	// yieldAbove is from how many queries in flight the writer yields first, so that other
	// goroutines can queue their queries for the same write and TLS record.
	yieldAbove = 8
	// maxKeptWriteBuf is the largest write buffer kept for reuse, in bytes: half of a
	// connection's queries.
	maxKeptWriteBuf = 32 << 10
)

// streamConn is one connection of a [streamTransport], from the first query assigned to it
// to its end. The transport's lock guards it.
type streamConn struct {
	conn   net.Conn // nil while connecting
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer
	// timerAt is when the timer fires; zero: never.
	timerAt time.Time

	begunAt time.Time // start of connecting
	// idleSince is when the last query left; zero before the connection is established. It
	// is meaningless while queries are in flight.
	idleSince time.Time
	// owedSince is since when a reply is owed and none has arrived; zero if none is owed.
	owedSince time.Time
	// answered says that a reply has arrived.
	answered bool
	// retired connections take no more queries, and are closed once none is in flight.
	retired    bool
	closed     bool
	unexpected int

	// queries has the IDs in use; nil for those of canceled or expired queries.
	queries      map[uint16]*query
	inFlight     int              // non-nil entries of queries
	division     *share.FairShare // of all connections of the transport
	orphans      int              // nil entries of queries
	lastSequence uint32           // queries assigned so far
	// movedOne says that a query was moved elsewhere since the last reply.
	movedOne bool

	// writeBuf holds the framed queries to write; spareBuf is its replacement during a
	// write. writing says that a goroutine is writing, or about to.
	writeBuf, spareBuf []byte
	writing            bool
}

func newStreamConn(now time.Time, all *share.FairShare) *streamConn {
	return &streamConn{begunAt: now, queries: make(map[uint16]*query), division: all}
}

// rank orders connections by how suitable they are for the next query, the best first.
type rank uint8

const (
	rankReady      rank = iota // connected
	rankConnecting             // still connecting
	rankBlocked                // a slow name seems to block it, see [streamTransport.headOfLineBlocked]
	rankStalled                // it owes a reply for too long
)

// rank returns the rank of c, without regard to head-of-line blocking.
func (c *streamConn) rank(now time.Time) rank {
	switch {
	case c.replyOverdue(now) >= stalledAfter:
		return rankStalled
	case c.conn == nil:
		return rankConnecting
	}
	return rankReady
}

// replyOverdue returns for how long a reply is owed.
func (c *streamConn) replyOverdue(now time.Time) time.Duration {
	if c.owedSince.IsZero() {
		return 0
	}
	return now.Sub(c.owedSince)
}

// add adds q, and changes its ID if another query here has the same, and queues it for
// writing.
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

// wakeBy makes the timer fire at the given time at the latest.
func (c *streamConn) wakeBy(at, now time.Time) {
	if c.timerAt.IsZero() || at.Before(c.timerAt) {
		c.timerAt = at
		c.timer.Reset(at.Sub(now))
	}
}

// setConn sets conn and queues the queries that have waited for it. Canceled and expired
// ones are not sent.
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
	c.owedSince, c.idleSince = time.Time{}, now // meaningless if queries are in flight
	if c.inFlight > 0 {
		c.owedSince = now
	}
}

// remove removes q, whose ID becomes free.
func (c *streamConn) remove(q *query) {
	delete(c.queries, q.sentID())
	c.inFlight--
	c.division.Remove(q.client)
	q.conn = nil
}

// orphan removes q, whose reply may still arrive.
func (c *streamConn) orphan(q *query) {
	c.queries[q.sentID()] = nil
	c.orphans++
	c.inFlight--
	c.division.Remove(q.client)
	q.conn = nil
}

// removeAll removes and returns all queries.
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

// deliver copies msg to the query that it answers, and removes and returns that query; the
// caller completes it. A late reply returns nil and true; a message that matches no query
// returns false.
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

// expire completes the queries whose deadline has passed at now, and returns their number.
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

// release frees the resources of c. The queries in flight stay.
func (c *streamConn) release() {
	c.closed = true
	c.timer.Stop()
	c.cancel()
	if c.conn != nil {
		c.conn.Close() // does not block: TLS writes its last record to an asyncConn
	}
	c.writeBuf, c.spareBuf = nil, nil
}

// claimWrite reports whether the caller has to write the queued queries.
func (c *streamConn) claimWrite() bool {
	if c.writing || c.conn == nil || c.closed || len(c.writeBuf) == 0 {
		return false
	}
	c.writing = true
	return true
}

// write writes the queries queued on c; the caller has claimed that. Queries queued
// meanwhile are written by another goroutine, because the caller waits for its own reply.
func (t *streamTransport) write(c *streamConn) {
	if t.flush(c) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !c.closed { // so that close waits for the goroutine
			t.tasks.Go(func() {
				for t.flush(c) {
				}
			})
		}
	}
}

// flush writes once, without blocking, and reports whether more is queued.
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
