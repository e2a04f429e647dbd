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
)

const (
	// inboxSize is read from a connection at once: ninety pipelined queries of a
	// usual length. Longer queries get a larger buffer as they come.
	inboxSize = 4096
	// gatherSize is how many bytes of replies are gathered before they are written:
	// what a full inbox of queries for single addresses is answered with. Half of it
	// would mean two writes for it; twice as much would only be memory.
	gatherSize = 8192
	// framing is the length before each message (RFC 1035, 4.2.2).
	framing = 2
)

// stream is one TCP connection. Its reader answers what can be answered at once,
// in order, and gathers the replies to queries that came together into one write;
// what has to wait is answered whenever it is ready (RFC 7766, 7).
//
// A connection on which nothing happens holds no buffers: the reader takes them
// when there is something to read, and gives them back when nothing is left of it.
// One that sends half a query keeps what it has sent; one that doesn't read its
// replies is not read from.
type stream struct {
	guest
	s   *Server
	l   *listener
	raw syscall.RawConn
	out outlet
	// tls is the connection under TLS, and below what is below of that; nil without.
	tls   *tls.Conn
	below *envelope

	// The rest belongs to the reader.

	// in is the buffer that is read into, nil while nothing has come. What lies
	// before had is the start of a query.
	in  []byte
	had int
	// until is the deadline for what comes next, by package clock. While partial is
	// set it is that of a query of which a part has come.
	until   time.Duration
	partial bool
	asked   int  // queries that came
	over    bool // the connection has come to its end
	handed  bool // in holds what another process has read
}

func (s *Server) newStream(l *listener, conn *net.TCPConn, lane int) (*stream, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &stream{s: s, l: l, raw: raw}
	c.init(conn, lane)
	c.out.c, c.out.changed.L = c, &c.out.mu
	return c, nil
}

// desk is what answering takes. It is needed from a read to the write that follows.
type desk struct {
	x      exchange
	gather [gatherSize]byte
	// out is the replies so far, each with its length; in gather, unless a reply is
	// larger than that.
	out []byte
	// got is whether a query was among what was read.
	got bool
}

var (
	desks   = sync.Pool{New: func() any { return new(desk) }}
	inboxes = sync.Pool{New: func() any { return new([inboxSize]byte) }}
)

// run answers the connection's queries until it ends, and then those that wait.
func (c *stream) run() {
	defer func() {
		c.out.settle()
		_ = c.Close()
		c.l.tcp.forget(&c.guest)
	}()
	if rt := c.l.routes.Load(); rt.Door.Transport == config.DNSOverTLS && !c.seal() {
		return
	}
	for {
		// All reading is done inside of this one call. It waits for bytes whenever turn
		// returns false, without forgetting those that came in the meantime.
		err := c.raw.Read(c.turn)
		if !c.moves() {
			if c.partial && errors.Is(err, os.ErrDeadlineExceeded) && !c.leaving.Load() {
				c.s.cut.Add(1)
			}
			return
		}
		if c.goes() && c.passOn() {
			return
		}
		c.goOn()
	}
}

// turn answers what has come. It is true when the connection has come to its end.
func (c *stream) turn(fd uintptr) bool {
	d := desks.Get().(*desk)
	d.x.via, d.x.client, d.x.lane = tcp, c.client, c.lane
	d.out, d.got = d.gather[:0], false
	if c.in == nil {
		c.in = inboxes.Get().(*[inboxSize]byte)[:]
	}
	more := c.read(int(fd), d)
	got := d.got
	d.x, d.out = exchange{}, nil // which hold on to packets, replies and zones
	desks.Put(d)
	if c.had == 0 {
		if len(c.in) == inboxSize {
			inboxes.Put((*[inboxSize]byte)(c.in))
		}
		c.in = nil
	}
	return !more || !c.rearm(got)
}

// read reads and answers until nothing is left to read; false at the end of the
// connection. It reads once more than there was something: only that tells the end
// of what the client sends if it came together with the last query.
func (c *stream) read(fd int, d *desk) bool {
	if c.handed {
		c.handed = false
		c.over = !c.answer(fd, d, c.in[:c.had])
	}
	for !c.over && !c.leaving.Load() && !c.goes() {
		n, errno := c.receive(fd, c.in[c.had:])
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return true
		}
		c.over = errno != 0 || n == 0 || !c.answer(fd, d, c.in[:c.had+n]) || c.overdue(d.x.start)
	}
	return false
}

// receive is read(2), of what is in the envelope if there is one.
func (c *stream) receive(fd int, buf []byte) (int, syscall.Errno) {
	if c.tls != nil {
		return c.unseal(fd, buf)
	}
	return transfer(unix.SYS_READ, fd, buf)
}

// overdue reports whether the last query is so long ago that the connection has to
// end. The deadline for reading doesn't say so while there is always something to
// read.
func (c *stream) overdue(now time.Duration) bool {
	return now > time.Duration(c.heard.Load())+c.s.times(c.l).idle*11/10
}

// answer answers the queries in data, which is the beginning of c.in, and keeps
// what is left of it. It is false if the connection has to end.
func (c *stream) answer(fd int, d *desk, data []byte) bool {
	d.x.start = clock.Now()
	most := c.s.times(c.l).queries
	for {
		packet, rest, ok := cutFrame(data)
		if !ok {
			break
		}
		d.x.q.Packet = packet
		if !c.query(fd, d) {
			return false
		}
		if c.asked++; c.asked == most {
			c.flush(fd, d)
			return false
		}
		data = rest
	}
	c.keep(data)
	if d.got {
		c.heard.Store(int64(d.x.start))
	}
	return c.flush(fd, d)
}

// cutFrame splits data behind its first message; false if that isn't whole.
func cutFrame(data []byte) (packet, rest []byte, ok bool) {
	if len(data) < framing {
		return nil, data, false
	}
	end := framing + int(binary.BigEndian.Uint16(data))
	if len(data) < end {
		return nil, data, false
	}
	return data[framing:end], data[end:], true
}

// keep moves rest, the start of a query, to where reading goes on. A buffer that is
// full of it gives way to one twice as large, but not larger than a message can
// be: the buffer grows by what has really come, not by what the length claims.
func (c *stream) keep(rest []byte) {
	c.had = len(rest)
	if c.had == len(c.in) {
		c.in = make([]byte, min(2*c.had, framing+wire.MaxMessage))
	}
	copy(c.in, rest)
}

// query answers one query, or has it answered when it is ready. What is no query
// is passed over: the next one is found by its length. It is false if the
// connection has to end.
func (c *stream) query(fd int, d *desk) bool {
	if cap(d.out)-len(d.out) < framing+replyBuffer && !c.flush(fd, d) {
		return false
	}
	n := len(d.out) + framing
	rt := c.l.routes.Load()
	msg, at := c.s.serve(rt, &d.x, d.out[n:n], tcpLimit)
	d.x.start += d.x.took
	if at != done {
		return c.postpone(fd, d, rt, at)
	}
	d.got = d.got || d.x.marks&dropped != 0
	d.add(msg)
	return true
}

func tcpLimit(*wire.Query) int { return wire.MaxMessage }

// add gathers a reply; nil is none. The reply may lie where it is to go already.
func (d *desk) add(msg []byte) {
	if msg == nil {
		return
	}
	d.got = true
	d.out = appendFrame(d.out, msg)
}

// appendFrame appends a message with its length.
func appendFrame(out, msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(msg))), msg...)
}

// flush writes what is gathered, and does not return before the client has taken
// it or has lost its connection, which is false.
func (c *stream) flush(fd int, d *desk) bool {
	if len(d.out) == 0 {
		return true
	}
	ok := c.out.write(fd, d.out)
	d.out = d.gather[:0]
	return ok
}

// postpone has a query that has to wait completed in a goroutine of its own, while
// the connection is read on. It is false if the connection has to end.
func (c *stream) postpone(fd int, d *desk, rt *Routes, at step) bool {
	d.got = true
	limit := c.s.limits.Pipelined
	if !c.out.begin(limit, false) {
		// The reader is going to wait, which the replies before must not.
		if !c.flush(fd, d) || !c.out.begin(limit, true) {
			return false
		}
	}
	if !c.s.acquire(&d.x) {
		c.out.end()
		d.add(c.s.full(&d.x, wire.MaxMessage))
		return true
	}
	w := new(exchange)
	d.x.detach(w, nil, nil)
	go func() {
		defer c.out.end()
		msg := c.s.wait(rt, w, at, wire.MaxMessage)
		c.s.release(w.place)
		if msg != nil {
			c.out.put(msg)
		}
	}()
	return true
}

// rearm sets the deadline for what comes next; false if the connection has to go. got
// says that a query has come since the last time. The deadline for the next query
// is set a tenth late, so that it is moved only when a tenth of the time has gone:
// once a second, not with each query.
func (c *stream) rearm(got bool) bool {
	times, heard := c.s.times(c.l), time.Duration(c.heard.Load())
	switch {
	case c.had > 0 && (got || !c.partial):
		c.partial, c.until = true, clock.Now()+times.sending
	case c.had > 0:
		return true
	case c.partial || heard+times.idle > c.until:
		c.partial, c.until = false, heard+times.idle*11/10
	default:
		return true
	}
	return c.l.tcp.await(&c.guest, c.until)
}
