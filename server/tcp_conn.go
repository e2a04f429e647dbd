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
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// readBufSize is read from a connection at once: ninety pipelined queries of a
	// usual length. Longer queries get a larger buffer as they come.
	readBufSize = 4096
	// writeBufSize is how many bytes of replies are gathered before they are written:
	// what a full inbox of queries for single addresses is answered with. Half of it
	// would mean two writes for it; twice as much would only be memory.
	writeBufSize = 8192
	// lengthPrefix is the length before each message (RFC 1035, 4.2.2).
	lengthPrefix = 2
)

// tcpConn is one TCP connection. Its reader answers what can be answered at once,
// in order, and gathers the replies to queries that came together into one write;
// what has to wait is answered whenever it is ready (RFC 7766, 7).
//
// A connection on which nothing happens holds no buffers: the reader takes them
// when there is something to read, and gives them back when nothing is left of it.
// One that sends half a query keeps what it has sent; one that doesn't read its
// replies is not read from.
type tcpConn struct {
	connState
	s      *Server
	l      *listener
	raw    syscall.RawConn
	writer connWriter
	// tls is the connection under TLS, and below what is below of that; nil without.
	tls       *tls.Conn
	transport *tlsTransport

	// The rest belongs to the reader.

	// readBuf is the buffer that is read into, nil while nothing has come. What lies
	// before had is the start of a query.
	readBuf  []byte
	buffered int
	// deadline is the deadline for what comes next, by package clock. While partial is
	// set it is that of a query of which a part has come.
	deadline time.Duration
	partial  bool
	queries  int  // queries that came
	ended    bool // the connection has come to its end
	adopted  bool // in holds what another process has read
}

func newTCPConn(l *listener, conn *net.TCPConn, lane int) (*tcpConn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &tcpConn{s: l.s, l: l, raw: raw}
	c.init(conn, lane)
	c.writer.c, c.writer.changed.L = c, &c.writer.mu
	return c, nil
}

// readState is what answering takes. It is needed from a read to the write that follows.
type readState struct {
	x        resolver.Request
	writeBuf [writeBufSize]byte
	// replies is the replies so far, each with its length; in gather, unless a reply is
	// larger than that.
	replies []byte
	// gotQuery is whether a query was among what was read.
	gotQuery bool
}

var (
	readStates = sync.Pool{New: func() any { return new(readState) }}
	readBufs   = sync.Pool{New: func() any { return new([readBufSize]byte) }}
)

// serve answers the connection's queries until it ends, and then those that wait.
func (c *tcpConn) serve() {
	defer func() {
		c.writer.waitIdle()
		_ = c.Close()
		c.l.tcp.remove(&c.connState)
	}()
	if c.l.config.Load().Transport == config.DNSOverTLS && !c.startTLS() {
		return
	}
	for {
		// All reading is done inside of this one call. It waits for bytes whenever turn
		// returns false, without forgetting those that came in the meantime.
		err := c.raw.Read(c.onReadable)
		if !c.mayTransfer() {
			if c.partial && errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load() {
				c.s.cut.Add(1)
			}
			return
		}
		if c.shouldTransfer() && c.transferAway() {
			return
		}
		c.keepServing()
	}
}

// onReadable answers what has come. It is true when the connection has come to its end.
func (c *tcpConn) onReadable(fd uintptr) bool {
	d := readStates.Get().(*readState)
	d.x.Proto, d.x.Client, d.x.Stripe = resolver.TCP, c.client, c.lane
	d.replies, d.gotQuery = d.writeBuf[:0], false
	if c.readBuf == nil {
		c.readBuf = readBufs.Get().(*[readBufSize]byte)[:]
	}
	more := c.readAll(int(fd), d)
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

// readAll reads and answers until nothing is left to read; false at the end of the
// connection. It reads once more than there was something: only that tells the end
// of what the client sends if it came together with the last query.
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
			return true
		}
		c.ended = errno != 0 || n == 0 || !c.answerQueries(fd, d, c.readBuf[:c.buffered+n]) || c.idleTooLong(d.x.Arrival)
	}
	return false
}

// read is read(2), of what is in the envelope if there is one.
func (c *tcpConn) read(fd int, buf []byte) (int, syscall.Errno) {
	if c.tls != nil {
		return c.readTLS(fd, buf)
	}
	return rawIO(unix.SYS_READ, fd, buf)
}

// idleTooLong reports whether the last query is so long ago that the connection has to
// end. The deadline for reading doesn't say so while there is always something to
// read.
func (c *tcpConn) idleTooLong(now time.Duration) bool {
	return now > time.Duration(c.lastQuery.Load())+c.l.timeouts().idle*11/10
}

// answerQueries answers the queries in data, which is the beginning of c.in, and keeps
// what is left of it. It is false if the connection has to end.
func (c *tcpConn) answerQueries(fd int, d *readState, data []byte) bool {
	d.x.Arrival = clock.Now()
	most := c.l.timeouts().maxQueries
	for {
		packet, rest, ok := splitFrame(data)
		if !ok {
			break
		}
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

// splitFrame splits data behind its first message; false if that isn't whole.
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

// keepPartial moves rest, the start of a query, to where reading goes on. A buffer that is
// full of it gives way to one twice as large, but not larger than a message can
// be: the buffer grows by what has really come, not by what the length claims.
func (c *tcpConn) keepPartial(rest []byte) {
	c.buffered = len(rest)
	if c.buffered == len(c.readBuf) {
		c.readBuf = make([]byte, min(2*c.buffered, lengthPrefix+wire.MaxMessage))
	}
	copy(c.readBuf, rest)
}

// answerQuery answers one query, or has it answered when it is ready. What is no query
// is passed over: the next one is found by its length. It is false if the
// connection has to end.
func (c *tcpConn) answerQuery(fd int, d *readState) bool {
	if cap(d.replies)-len(d.replies) < lengthPrefix+replyBuffer && !c.flush(fd, d) {
		return false
	}
	n := len(d.replies) + lengthPrefix
	rt := c.l.config.Load().Routes
	msg, o := c.s.serve(rt, &d.x, d.replies[n:n])
	d.x.Arrival += d.x.Latency
	if o != resolver.Answered {
		return c.goAsync(fd, d, rt, o)
	}
	d.gotQuery = d.gotQuery || d.x.Dropped()
	d.addReply(msg)
	return true
}

// addReply gathers a reply; nil is none. The reply may lie where it is to go already.
func (d *readState) addReply(msg []byte) {
	if msg == nil {
		return
	}
	d.gotQuery = true
	d.replies = appendFrame(d.replies, msg)
}

// appendFrame appends a message with its length.
func appendFrame(out, msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(msg))), msg...)
}

// flush writes what is gathered, and does not return before the client has taken
// it or has lost its connection, which is false.
func (c *tcpConn) flush(fd int, d *readState) bool {
	if len(d.replies) == 0 {
		return true
	}
	ok := c.writer.write(fd, d.replies)
	d.replies = d.writeBuf[:0]
	return ok
}

// goAsync has a query that has to wait completed in a goroutine of its own, while
// the connection is read on. It is false if the connection has to end.
func (c *tcpConn) goAsync(fd int, d *readState, rt *resolver.Routes, o resolver.Outcome) bool {
	d.gotQuery = true
	limit := c.s.limits.Pipelined
	if !c.writer.beginQuery(limit, false) {
		// The reader is going to wait, which the replies before must not.
		if !c.flush(fd, d) || !c.writer.beginQuery(limit, true) {
			return false
		}
	}
	if !c.s.acquire(&d.x) {
		c.writer.endQuery()
		d.addReply(d.x.Reject())
		return true
	}
	w := new(resolver.Request)
	d.x.Detach(c.s.ctx, w, nil, nil)
	go func() {
		defer c.writer.endQuery()
		msg := c.s.wait(rt, w, o, nil)
		c.s.release(w.Place)
		if msg != nil {
			c.writer.enqueue(msg)
		}
	}()
	return true
}

// resetDeadline sets the deadline for what comes next; false if the connection has to go. got
// says that a query has come since the last time. The deadline for the next query
// is set a tenth late, so that it is moved only when a tenth of the time has gone:
// once a second, not with each query.
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
