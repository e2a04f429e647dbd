package server

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/socket"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

const (
	// readBufSize is the size of the read buffer: ninety pipelined queries of typical length.
	// For a longer query the buffer grows as it arrives.
	readBufSize = 4096
	// writeBufSize is how many bytes of replies are collected before they are written: the
	// replies to a full read buffer of queries for single addresses.
	writeBufSize = 8192
	// lengthPrefix is the size of the length before each message (RFC 1035, 4.2.2).
	lengthPrefix = 2
)

// tcpConn is one connection over TCP or TLS. Its reader answers at once what it can, in
// order, and collects the replies to queries that came together into one write. Queries that
// wait are answered in any order (RFC 7766, 7).
//
// An idle connection holds no buffers: the reader takes them from a pool when data arrives
// and returns them when none is left. A connection with half a query keeps its read buffer.
// A client that does not read its replies is not read from.
type tcpConn struct {
	connState
	s      *Server
	l      *listener
	raw    syscall.RawConn
	writer connWriter
	turn   tcpTurn
	// tls is the connection's TLS layer and transport what is below it; nil without TLS.
	tls       *tls.Conn
	transport *tlsTransport

	// The remaining fields belong to the reader.

	// readBuf is the buffer for reading, nil while no data has arrived. Its first buffered
	// bytes are the start of a query.
	readBuf  []byte
	buffered int
	// deadline is when the next data must have arrived, by package clock. While partial is
	// set, a part of a query has arrived and the rest of it must.
	deadline time.Duration
	partial  bool
	queries  int  // queries received
	ended    bool // the connection must be closed
	adopted  bool // readBuf holds what another process has read
}

func newTCPConn(l *listener, conn *net.TCPConn, stripe int) (*tcpConn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &tcpConn{s: l.s, l: l, raw: raw, turn: tcpTurn{turns: l.s.tcpTurns}}
	c.init(conn, stripe, l.s.limits.PodRanges)
	c.writer.c, c.writer.changed.L = c, &c.writer.mu
	c.lost = c.writer.evict
	return c, nil
}

// readState is what answering needs, from a read to the write that follows. It is pooled.
type readState struct {
	x        resolver.Request
	writeBuf [writeBufSize]byte
	// replies is the replies so far, with their lengths. It is in writeBuf unless a reply is
	// larger than that.
	replies []byte
	// gotQuery is set when a query has been read.
	gotQuery bool
}

var (
	readStates = sync.Pool{New: func() any { return new(readState) }}
	readBufs   = sync.Pool{New: func() any { return new([readBufSize]byte) }}
)

// serve answers the connection's queries until it ends, then waits for pending ones.
func (c *tcpConn) serve() {
	if c.s.tcpClients.AcquireFree(&c.turn.place, c.share) {
		defer c.s.tcpClients.Release(&c.turn.place)
	}
	defer c.end()
	if c.l.config.Load().Transport == config.DNSOverTLS && !c.startTLS() {
		return
	}
	for {
		// All reading happens in this one call. It waits for data whenever onReadable
		// returns false, and does not miss data that has arrived meanwhile.
		err := c.raw.Read(c.onReadable)
		if !c.mayTransfer() {
			c.countCut(err)
			return
		}
		if c.shouldTransfer() && c.transferAway() {
			return
		}
		c.keepServing()
	}
}

// countCut counts a query that did not arrive in full in time. err is that of reading.
func (c *tcpConn) countCut(err error) {
	if c.partial && errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load() {
		c.s.cut.Add(1)
	}
}

// end waits for pending queries, and closes the connection.
func (c *tcpConn) end() {
	if c.writer.isBroken() {
		_ = c.conn.Close() // pending queries may go on for seconds, and their replies reach nobody
	}
	c.writer.waitIdle()
	_ = c.Close()
	c.l.tcp.remove(&c.connState)
}

// onReadable reads and answers what has arrived. It returns true if the connection must end
// or be transferred.
func (c *tcpConn) onReadable(fd uintptr) bool {
	d := readStates.Get().(*readState)
	d.x.Proto, d.x.Client, d.x.Stripe, d.x.Streams = resolver.TCP, c.client, c.stripe, true
	d.x.Encrypted = c.tls != nil
	d.x.Turns, d.x.Room, d.x.Idle = c.s.largeTurns, c.s.largeRoom, c.l.timeouts().idle
	d.replies, d.gotQuery = d.writeBuf[:0], false
	if c.readBuf == nil {
		c.readBuf = readBufs.Get().(*[readBufSize]byte)[:]
	}
	c.turn.begin(clock.Now())
	more := c.readAll(int(fd), d)
	c.turn.end()
	got := d.gotQuery
	d.x.Clear()
	d.replies = nil
	readStates.Put(d)
	if c.buffered == 0 {
		if len(c.readBuf) == readBufSize {
			readBufs.Put((*[readBufSize]byte)(c.readBuf))
		}
		c.readBuf = nil
	}
	return !more || !c.resetDeadline(got)
}

// readAll reads and answers until no data is left. It returns false at the end of the
// connection. It always reads until the kernel has no data: only that detects the end of the
// stream if it arrived together with the last query.
func (c *tcpConn) readAll(fd int, d *readState) bool {
	if c.adopted {
		c.adopted = false
		c.ended = !c.answerQueries(fd, d, c.readBuf[:c.buffered])
	}
	for !c.ended && !c.closing.Load() && !c.shouldTransfer() {
		n, errno := c.read(fd, c.readBuf[c.buffered:])
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			c.acknowledgeUnanswered(fd)
			return true
		}
		c.ended = errno != 0 || n == 0 || !c.answerQueries(fd, d, c.readBuf[:c.buffered+n]) || c.idleTooLong(d.x.Arrival)
	}
	return false
}

// acknowledgeUnanswered acknowledges what no reply acknowledges soon. A client with Nagle's algorithm (RFC 896) holds back
// the rest of its query, or the next one, until then: for 40 ms, or until the reply.
func (c *tcpConn) acknowledgeUnanswered(fd int) {
	if c.buffered > 0 || c.waiting.Load() > 0 {
		socket.Acknowledge(fd)
	}
}

// read reads like read(2), through TLS if there is TLS.
func (c *tcpConn) read(fd int, buf []byte) (int, syscall.Errno) {
	if c.tls != nil {
		return c.readTLS(fd, buf)
	}
	return rawIO(unix.SYS_READ, fd, buf)
}

// idleTooLong reports whether the last query is so long ago that the connection must end.
// The read deadline does not expire while there is always data to read.
func (c *tcpConn) idleTooLong(now time.Duration) bool {
	return now > time.Duration(c.lastQuery.Load())+c.l.timeouts().idle*11/10
}

// answerQueries answers the queries in data, which is the start of c.readBuf, and keeps what
// is left of it. It returns false if the connection must end.
func (c *tcpConn) answerQueries(fd int, d *readState, data []byte) bool {
	d.x.Arrival = clock.Now()
	most := c.l.timeouts().maxQueries
	for {
		packet, rest, ok := splitFrame(data)
		if !ok {
			break
		}
		c.turn.begin(d.x.Arrival)
		d.x.Query.Packet = packet
		if !c.answerQuery(fd, d) {
			return false
		}
		if c.queries++; c.queries == most {
			c.flush(fd, d)
			return false
		}
		data = rest
	}
	c.keepPartial(data)
	if d.gotQuery {
		c.lastQuery.Store(int64(d.x.Arrival))
	}
	return c.flush(fd, d)
}

// splitFrame splits data after its first message; ok is false if that is incomplete.
func splitFrame(data []byte) (packet, rest []byte, ok bool) {
	if len(data) < lengthPrefix {
		return nil, data, false
	}
	end := lengthPrefix + int(binary.BigEndian.Uint16(data))
	if len(data) < end {
		return nil, data, false
	}
	return data[lengthPrefix:end], data[end:], true
}

// keepPartial moves rest, the start of a query, to the start of the buffer. A full buffer is
// replaced by one twice as large, up to the size of a message: it grows by the data that has
// arrived, not by what the length claims.
func (c *tcpConn) keepPartial(rest []byte) {
	c.buffered = len(rest)
	if c.buffered == len(c.readBuf) {
		c.readBuf = make([]byte, min(2*c.buffered, lengthPrefix+wire.MaxMessage))
	}
	copy(c.readBuf, rest)
}

// answerQuery answers one query now or when it is ready. It ignores messages that are not
// queries. It returns false if the connection must end.
func (c *tcpConn) answerQuery(fd int, d *readState) bool {
	if cap(d.replies)-len(d.replies) < lengthPrefix+udp.ReplyBuffer && !c.flush(fd, d) {
		return false
	}
	n := len(d.replies) + lengthPrefix
	rt := c.l.config.Load().Routes
	if c.s.overLimit(rt, &d.x) {
		d.addReply(c.s.limits.Client.Refuse(d.replies[n:n], d.x.Query.Packet, resolver.TCP))
		return true
	}
	if c.large.Load() {
		if answered, ok := c.answerInTurn(fd, d, rt); answered || !ok {
			return ok
		}
	}
	msg, o := c.s.serve(rt, &d.x, d.replies[n:n])
	d.x.Arrival += d.x.Latency
	if o != resolver.Answered {
		return c.goAsync(fd, d, rt, o)
	}
	if len(msg) > largeReply {
		c.large.Store(true)
	}
	d.gotQuery = d.gotQuery || d.x.Dropped()
	d.addReply(msg)
	return true
}

// addReply collects a reply; nil is none. The reply may already be in its place.
func (d *readState) addReply(msg []byte) {
	if msg == nil {
		return
	}
	d.gotQuery = true
	d.replies = appendFrame(d.replies, msg)
}

// appendFrame appends a message with its length prefix.
func appendFrame(out, msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(msg))), msg...)
}

// flush writes the collected replies and blocks until the client has accepted them. It
// returns false if the connection is lost.
func (c *tcpConn) flush(fd int, d *readState) bool {
	if len(d.replies) == 0 {
		return true
	}
	ok := c.writer.write(fd, d.replies)
	d.replies = d.writeBuf[:0]
	return ok
}

// goAsync completes a query that has to wait on a goroutine of its own, while the connection
// is read from. It returns false if the connection must end.
func (c *tcpConn) goAsync(fd int, d *readState, rt *resolver.Routes, o resolver.Outcome) bool {
	d.gotQuery = true
	limit := c.s.limits.Pipelined
	if c.s.waiting.Crowds(c.share) { // it would only take a place from itself
		limit = min(limit, max(1, int(c.waiting.Load())))
	}
	c.turn.over -= asyncCost
	if !c.writer.beginQuery(limit, false) {
		// The reader is going to wait; the replies so far must not.
		if !c.flush(fd, d) {
			return false
		}
		c.turn.end()
		if !c.writer.beginQuery(limit, true) {
			return false
		}
	}
	w := asyncQueries.Get().(*asyncQuery)
	if !c.s.acquire(&w.place, &d.x) {
		asyncQueries.Put(w)
		c.writer.endQuery()
		d.addReply(d.x.Reject())
		return true
	}
	if d.x.Large() {
		return c.answerLarge(fd, d, rt, w)
	}
	d.x.Detach(&w.place, &w.Request, nil, nil)
	go func() {
		defer c.writer.endQuery()
		msg := c.s.wait(rt, &w.Request, o, nil)
		if w.Transfers() {
			c.sendTransfer(&w.Request, msg)
			msg = nil
		}
		c.s.waiting.Release(&w.place)
		w.Clear()
		asyncQueries.Put(w)
		if msg != nil {
			c.writer.enqueue(msg)
		}
	}()
	return true
}

// answerLarge answers a query with a large answer, in the place of w. The connection is not read from until the client has accepted
// the reply: it has one large reply in memory at most, however many queries it has sent. It returns false if the
// connection must end.
func (c *tcpConn) answerLarge(fd int, d *readState, rt *resolver.Routes, w *asyncQuery) bool {
	defer c.writer.endQuery()
	defer asyncQueries.Put(w)
	defer c.s.waiting.Release(&w.place)
	defer d.x.ReleaseRoom()
	if !c.flush(fd, d) { // the replies so far must not wait
		return false
	}
	c.turn.end()
	buf := largeBuffers.Get().(*largeBuffer)
	defer largeBuffers.Put(buf)
	d.x.Permit(&w.place)
	msg := c.s.wait(rt, &d.x, resolver.WouldWait, buf[lengthPrefix:lengthPrefix])
	d.x.Forbid()
	if msg == nil {
		return true
	}
	d.gotQuery = true
	d.replies = appendFrame(buf[:0], msg)
	return c.flush(fd, d)
}

// answerInTurn answers a query at once, but in turn, because the last reply on the connection was large. If answered is false, the
// query is to be answered like any other. ok is false if the connection must end.
func (c *tcpConn) answerInTurn(fd int, d *readState, rt *resolver.Routes) (answered, ok bool) {
	if !c.flush(fd, d) { // the replies so far must not wait
		return false, false
	}
	c.turn.end()
	w := asyncQueries.Get().(*asyncQuery)
	defer asyncQueries.Put(w)
	if !c.s.waiting.AcquireFree(&w.place, c.share) {
		return false, true
	}
	defer c.s.waiting.Release(&w.place)
	d.x.Place = w.place.Client()
	buf := largeBuffers.Get().(*largeBuffer)
	defer largeBuffers.Put(buf)
	msg, o, err := c.s.serveLarge(rt, &d.x, &w.place, buf[lengthPrefix:lengthPrefix], &c.large)
	if err != nil || o != resolver.Answered {
		return false, true
	}
	defer d.x.ReleaseRoom()
	d.x.Arrival += d.x.Latency
	d.gotQuery = d.gotQuery || d.x.Dropped()
	if msg == nil {
		return true, true
	}
	d.gotQuery = true
	d.replies = appendFrame(buf[:0], msg)
	return true, c.flush(fd, d)
}

// largeBuffer holds the largest reply with its length.
type largeBuffer [lengthPrefix + wire.MaxMessage]byte

// largeBuffers holds unused ones for reuse.
var largeBuffers = sync.Pool{New: func() any { return new(largeBuffer) }}

// maxLargeReplies is how many large replies may wait for their clients to accept them, over all addresses: 4 MiB. One client
// may have half of them, see [share.Room].
const maxLargeReplies = 64

// asyncQuery is one query over TCP or TLS that waits.
type asyncQuery struct {
	resolver.Request
	place share.Place
}

// asyncQueries holds finished ones for reuse.
var asyncQueries = sync.Pool{New: func() any { return new(asyncQuery) }}

// resetDeadline sets the deadline for what comes next. got says that a query has arrived
// since the last call. It returns false if the connection must end. The deadline for the next
// query is set a tenth late, so that it needs to be moved only once a second and not with
// each query.
func (c *tcpConn) resetDeadline(got bool) bool {
	times, heard := c.l.timeouts(), time.Duration(c.lastQuery.Load())
	switch {
	case c.buffered > 0 && (got || !c.partial):
		c.partial, c.deadline = true, clock.Now()+times.read
	case c.buffered > 0:
		return true
	case c.partial || heard+times.idle > c.deadline:
		c.partial, c.deadline = false, heard+times.idle*11/10
	default:
		return true
	}
	return c.l.tcp.setReadDeadline(&c.connState, c.deadline)
}

// mayTransfer reports whether the connection is to be transferred rather than closed. Its
// reader has returned from reading.
func (c *tcpConn) mayTransfer() bool {
	return c.transferring.Load() && !c.closing.Load() && !c.ended && c.tls == nil
}

// transferAway waits for pending queries and passes the connection on. It returns false if
// the connection stays here.
func (c *tcpConn) transferAway() bool {
	c.writer.waitIdle()
	d := c.s.suspended.Load()
	if d != nil && !c.closing.Load() && d.transferConn(c) {
		return true
	}
	c.l.tcp.mu.Lock()
	defer c.l.tcp.mu.Unlock()
	if c.s.suspended.Load() == d { // otherwise another drain has begun
		c.transferring.Store(false)
	}
	return false
}

// keepServing continues to serve the connection here, as if the client had just connected.
func (c *tcpConn) keepServing() {
	// The failed transfer may have called [os.File.Fd], which makes the socket blocking.
	_ = c.raw.Control(func(fd uintptr) { _ = unix.SetNonblock(int(fd), true) })
	c.partial, c.deadline = false, 0
	c.resetDeadline(false)
}

// sendTransfer sends the zone transfer of r, whose first message is msg. It blocks for the client, which gets the time of a
// write for each message. A transfer that ends early closes the connection (RFC 5936, 4.1): what the
// client has is not the zone.
func (c *tcpConn) sendTransfer(r *resolver.Request, msg []byte) {
	sent := false
	defer func() {
		if p := recover(); p != nil {
			c.s.panicked(r, nil, p)
			sent = false
		}
		if !r.EndTransfer(sent) {
			c.l.tcp.closeSoon(&c.connState)
		}
	}()
	for sent = true; sent && msg != nil; msg = r.NextMessage() {
		sent = c.writer.send(msg)
	}
}
