package upstream

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
)

const (
	// maxInFlightPerConn bounds the IDs in use on a connection. A random ID is then almost
	// always free. maxConns times this bounds the queries in flight per server.
	maxInFlightPerConn = 1024
	// maxOrphans is how many IDs of canceled or expired queries a connection may hold
	// before it is retired.
	maxOrphans = maxInFlightPerConn / 4
	// stalledAfter is how long a connection may be silent, with a reply owed, before new
	// queries use another one. It is longer than Linux's shortest retransmission timeout of
	// 200 ms.
	stalledAfter = 250 * time.Millisecond
	// closeStalledAfter is how long such a connection is kept in case it recovers: about
	// the read timeout.
	closeStalledAfter = 2 * time.Second
	// yieldAbove is from how many queries in flight the writer yields first, so that other
	// goroutines can queue their queries for the same write and TLS record.
	yieldAbove = 8
	// ackWithQuery is from how many queries in flight a reply is acknowledged by the next
	// query: that follows within a fraction of the usual response time.
	ackWithQuery = 8
	// maxKeptWriteBuf is the largest write buffer kept for reuse, in bytes: half of a
	// connection's queries.
	maxKeptWriteBuf = 32 << 10
)

// streamConn is one connection of a [streamTransport], from the first query assigned to it
// to its end. The transport's lock guards it.
type streamConn struct {
	conn   net.Conn       // nil while connecting
	under  *asyncConn     // conn, or what is below TLS
	local  netip.AddrPort // of conn
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer
	// timerAt is when the timer fires; zero: never.
	timerAt time.Time

	connection           // opened at the start of connecting
	replies    int       // replies that have arrived, late ones included
	repliedAt  time.Time // when the last one arrived
	// wasBlocked says that it arrived after the connection was blocked.
	wasBlocked bool

	// claimed is used by the reading goroutine.
	claimed repliedQueries

	// queries has the IDs in use; nil for canceled or expired queries.
	// inFlight is the number of the others.
	queries      map[uint16]*query
	total        *int   // in flight on all connections of the transport
	orphans      int    // nil entries of queries
	lastSequence uint32 // queries assigned so far
	// movedAt is when a query was moved elsewhere; zero if none was since the last reply.
	movedAt time.Time

	// writeBuf holds the framed queries to write; spareBuf is its replacement during a
	// write. writing says that a goroutine is writing, or about to.
	writeBuf, spareBuf []byte
	writing            bool
}

// streamFlight is where a query is in flight over TCP or TLS. The transport's lock guards it.
type streamFlight struct {
	conn    *streamConn
	resends int // how often it moved to another conn
	// sequence numbers the queries of conn; assignedAt is when conn was assigned, and ahead how many were in flight
	// on it then.
	sequence   uint32
	ahead      int
	movedFrom  *streamConn // the blocked connection it was moved from, if any
	assignedAt time.Time
}

func newStreamConn(now time.Time, total *int) *streamConn {
	return &streamConn{connection: connection{openedAt: now}, queries: make(map[uint16]*query), total: total}
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
	q.ahead = c.inFlight
	c.begin(now)
	*c.total++
	c.lastSequence++
	q.conn, q.sequence, q.assignedAt = c, c.lastSequence, now
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

// setConn sets conn and queues the queries that have waited for it, in the order in which
// they were added: a server that answers in order must not seem to do otherwise.
func (c *streamConn) setConn(conn net.Conn) {
	c.conn, c.local = conn, localAddr(conn)
	c.lastSequence = 0 // some may have left
	for _, q := range c.inFlightQueries() {
		c.lastSequence++
		q.sequence = c.lastSequence
		c.writeBuf = append(c.writeBuf, q.frame...)
	}
	now := time.Now()
	c.idleSince = now // meaningless if queries are in flight
	c.replied(c.inFlight > 0, now)
}

// inFlightQueries returns the queries in flight in the order in which they were added.
func (c *streamConn) inFlightQueries() []*query {
	list := make([]*query, 0, c.inFlight)
	for _, q := range c.queries {
		if q != nil {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *query) int { return int(int32(a.sequence - b.sequence)) })
	return list
}

// earliest returns the query that was assigned first of q, which may be nil, and those of c.
func (c *streamConn) earliest(q *query) *query {
	for _, other := range c.queries {
		if q == nil || other != nil && other.assignedAt.Before(q.assignedAt) {
			q = other
		}
	}
	return q
}

// remove removes q, whose ID becomes free.
func (c *streamConn) remove(q *query) {
	delete(c.queries, q.sentID())
	c.inFlight--
	*c.total--
	q.conn, q.local = nil, c.local
}

// orphan removes q, whose reply may still arrive if q was sent.
func (c *streamConn) orphan(q *query) {
	id := q.sentID()
	c.remove(q)
	if c.conn != nil {
		c.queries[id] = nil
		c.orphans++
	}
}

// removeAll removes and returns all queries in the order in which they were added.
func (c *streamConn) removeAll() []*query {
	list := c.inFlightQueries()
	for _, q := range list {
		c.remove(q)
	}
	return list
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
	c.replies++
	c.repliedAt = now
	c.replied(len(c.queries) > 0, now)
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

// readBufSize is the size of a connection's read buffer, in bytes: about thirty ordinary
// messages.
const readBufSize = 4096

// frameReader splits a TCP stream into messages, each preceded by its length (RFC 1035,
// 4.2.2). Its buffer grows to the largest message, 64 KiB at most, and shrinks again.
type frameReader struct {
	buf      []byte
	from, to int // unread part of buf
}

// frameLen returns the length of the first message of b with its prefix.
func frameLen(b []byte) int { return 2 + int(binary.BigEndian.Uint16(b)) }

// next returns the next message, valid until fill; false if none is complete.
func (r *frameReader) next() (msg []byte, ok bool) {
	if r.to-r.from < 2 {
		return nil, false
	}
	end := r.from + frameLen(r.buf[r.from:])
	if r.to < end {
		return nil, false
	}
	msg = r.buf[r.from+2 : end]
	r.from = end
	return msg, true
}

// fill blocks until it has read something from src. The caller must take all messages with
// next before. Data may have been read even if there is an error.
func (r *frameReader) fill(src io.Reader) error {
	r.grow()
	n, err := src.Read(r.buf[r.to:])
	r.to += n
	switch {
	case err == nil:
		return nil
	case err != io.EOF:
		return err
	case r.atBoundary():
		return fmt.Errorf("the server closed the connection: %w", err)
	}
	return fmt.Errorf("the server closed the connection inside a message: %w", io.ErrUnexpectedEOF)
}

// grow makes room for the rest of a message, or for several short ones.
func (r *frameReader) grow() {
	left := r.buf[r.from:r.to]
	need := readBufSize
	if len(left) >= 2 {
		need = max(need, frameLen(left))
	}
	if need > len(r.buf) || len(r.buf) > maxKeptBuffer && need <= maxKeptBuffer {
		r.buf = append(make([]byte, 0, need), left...)[:need]
	} else {
		copy(r.buf, left)
	}
	r.from, r.to = 0, len(left)
}

// atBoundary reports whether the data read ends with a complete message.
func (r *frameReader) atBoundary() bool {
	at := r.from
	for r.to-at >= 2 {
		at += frameLen(r.buf[at:])
	}
	return at == r.to
}
