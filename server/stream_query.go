package server

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// connActivity is what the limits of connections know about one.
type connActivity struct {
	// share is what the client counts as.
	share netip.Addr
	// lastQuery is when the last query arrived, or the connection before its first query,
	// by package clock.
	lastQuery atomic.Int64
	// waiting is the number of queries that wait, or of requests or streams in flight.
	waiting atomic.Int32
	// large is set while the last reply was larger than largeReply: the next one is made in turn.
	large atomic.Bool
}

// streamQuery is the state of answering a query that has a stream of its own, such as an HTTP
// request. Its reply goes into the same stream, so the goroutine that has read the query may
// wait for the answer. A streamQuery is reused.
type streamQuery struct {
	// x is the query. Its Proto, Client and Stripe are set, and inFlight is acquired, before
	// [streamQuery.answer].
	x       resolver.Request
	in, out []byte
	// inFlight is the stream's place among those of its listener, waiting its query's among
	// those that wait.
	inFlight, waiting share.Place
	s                 *Server
	stream            deadliner
	conn              *connActivity // nil: not known
	held              *heldWrites   // of the connection; nil: nothing is held
	replying          atomic.Bool   // the reply is being written
	reusable          bool
}

// deadliner is a stream whose reader and writer deadlines end.
type deadliner interface {
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

var streamQueries = sync.Pool{New: func() any {
	e := &streamQuery{in: make([]byte, 0, udp.MaxQuery), out: make([]byte, 0, udp.ReplyBuffer)}
	e.inFlight.OnLost = e.abort
	return e
}}

// newStreamQuery returns a streamQuery for stream. The caller releases it.
func newStreamQuery(s *Server, stream deadliner) *streamQuery {
	e := streamQueries.Get().(*streamQuery)
	e.x.Turns, e.x.Room = s.largeTurns, s.largeRoom
	e.s, e.stream, e.conn, e.held, e.reusable = s, stream, nil, nil, false
	e.replying.Store(false)
	return e
}

// release makes e available for another stream, unless its buffers may still be in use. A place stays lost until it is
// acquired again, which an HTTP/3 request doesn't do: its stream has the place.
func (e *streamQuery) release() {
	if e.x.HasRoom() {
		e.x.ReleaseRoom()
		e.s.waiting.Release(&e.waiting)
	}
	if e.held != nil && e.replying.Load() {
		e.held.release()
	}
	if !e.reusable || e.inFlight.Err() != nil {
		return
	}
	e.x.Clear()
	e.s, e.stream, e.conn, e.held = nil, nil, nil, nil
	streamQueries.Put(e)
}

// keepBuffers makes e reusable. packet and msg, which may have grown, are its query and reply.
func (e *streamQuery) keepBuffers(packet, msg []byte) {
	e.in, e.out, e.reusable = udp.ReuseBuffer(e.in, packet), udp.ReuseBuffer(e.out, msg), true
}

// beginReply notes that the reply is going to be written; false if e has lost its place, so that the
// query is refused, which it counts. A client that doesn't read its reply loses the place only if another one
// needs it.
func (e *streamQuery) beginReply() bool {
	e.replying.Store(true)
	if e.held != nil {
		e.held.hold()
	}
	if e.inFlight.Err() != nil {
		e.s.shed[shedClient].Add(1)
		return false
	}
	return true
}

// abort ends the stream, which has lost its place, whether it is read, its query waits or its reply is written.
func (e *streamQuery) abort() {
	if e.replying.Load() {
		_ = e.stream.SetWriteDeadline(past)
		return
	}
	_ = e.stream.SetReadDeadline(past)
	e.s.waiting.Revoke(&e.waiting)
}

// noteSize notes whether the next reply on e's connection is probably large.
func (e *streamQuery) noteSize(msg []byte) {
	if len(msg) > largeReply && e.conn != nil {
		e.conn.large.Store(true)
	}
}

// releasePlace gives the place of e's query back. A large reply keeps it until it is written.
func (e *streamQuery) releasePlace() {
	if !e.x.HasRoom() {
		e.s.waiting.Release(&e.waiting)
	}
}

// answer walks the path for packet, and waits where it has to; nil is for what is no query.
// buf is for the reply. A query that finds a free place takes it at once, so that it walks the
// path only once. Another one takes a place from a client only if it has to wait.
func (e *streamQuery) answer(rt *resolver.Routes, packet, buf []byte) []byte {
	s, x := e.s, &e.x
	x.Query.Packet, x.Arrival = packet, clock.Now()
	free := s.waiting.AcquireFree(&e.waiting, s.limits.PodRanges.Client(x.Client.Addr()))
	if free {
		defer e.releasePlace()
		x.Place = e.waiting.Client()
		if e.conn != nil && e.conn.large.Load() { // probably large, like the last one
			if msg, o, err := s.serveLarge(rt, x, &e.waiting, buf, &e.conn.large); err == nil && o == resolver.Answered {
				return msg
			}
		}
		x.Permit(&e.waiting)
	}
	msg, o := s.serve(rt, x, buf)
	if o == resolver.Answered {
		e.noteSize(msg)
		return msg
	}
	if !free {
		if !s.acquire(&e.waiting, x) {
			return x.Reject()
		}
		defer e.releasePlace()
		x.Permit(&e.waiting)
		o = resolver.WouldWait // what the first run has found is from before the permission
	}
	if e.inFlight.Err() != nil { // abort may have come before there was a place to revoke
		s.waiting.Revoke(&e.waiting)
	}
	return s.wait(rt, x, o, buf)
}

// largeReply is the size above which a reply is large. Copying it, and shuffling its addresses, takes tens of microseconds.
const largeReply = 16 << 10

// ClientAddr implements connlimit's interface.
func (a *connActivity) ClientAddr() netip.Addr { return a.share }

// Activity implements connlimit's interface.
func (a *connActivity) Activity() (last time.Duration, busy bool) {
	return time.Duration(a.lastQuery.Load()), a.waiting.Load() > 0
}

// streamPlaces are the places of a listener's streams in flight: requests over HTTP, or queries over
// QUIC. They are divided among clients by the same rule as waiting queries, but have places of their
// own, because a query that arrives slowly occupies no place of a waiting query. It is safe for
// concurrent use.
type streamPlaces struct {
	*share.Limiter

	mu       sync.Mutex
	draining bool
	drained  chan struct{} // closed when draining is set and no stream is in flight
}

func newStreamPlaces(n int) *streamPlaces {
	return &streamPlaces{Limiter: share.NewLimiter(n), drained: make(chan struct{})}
}

// begin makes e a stream in flight on the connection c; false if there is no room.
func (p *streamPlaces) begin(c *connActivity, e *streamQuery) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining || !p.Acquire(&e.inFlight, c.share) {
		return false
	}
	c.waiting.Add(1)
	c.lastQuery.Store(int64(clock.Now()))
	e.conn = c
	return true
}

// end ends a stream that begin has admitted, and releases e.
func (p *streamPlaces) end(c *connActivity, e *streamQuery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.waiting.Add(-1)
	p.Release(&e.inFlight)
	e.release()
	if p.draining && p.Idle() {
		close(p.drained)
	}
}

// drain admits no more streams. It is called once.
func (p *streamPlaces) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	if p.Idle() {
		close(p.drained)
	}
}

// isDraining reports whether drain was called.
func (p *streamPlaces) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}
