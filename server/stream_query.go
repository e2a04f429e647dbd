package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

// streamQuery is the state of answering a query that has a stream of its own, such as an HTTP
// request. Its reply goes into the same stream, so the goroutine that has read the query may
// wait for the answer. A streamQuery is reused.
type streamQuery struct {
	// x is the query. Its Proto, Client and Stripe are set, and inFlight is acquired, before
	// [Server.answerStream].
	x       resolver.Request
	in, out []byte
	// inFlight is the stream's place among those of its listener, waiting its query's among
	// those that wait.
	inFlight, waiting share.Place
	s                 *Server
	stream            deadliner
	conn              *connActivity // nil: not known
	replying          atomic.Bool   // the reply is being written
	reusable          bool
}

// deadliner is a stream whose reader and writer deadlines end.
type deadliner interface {
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

var streamQueries = sync.Pool{New: func() any {
	e := &streamQuery{in: make([]byte, 0, maxUDPQuery), out: make([]byte, 0, replyBuffer)}
	e.inFlight.OnLost = e.abort
	return e
}}

// newStreamQuery returns a streamQuery for stream. The caller releases it.
func (s *Server) newStreamQuery(stream deadliner) *streamQuery {
	e := streamQueries.Get().(*streamQuery)
	e.x.Turns, e.x.Room = s.largeTurns, s.largeRoom
	e.s, e.stream, e.conn, e.reusable = s, stream, nil, false
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
	if !e.reusable || e.inFlight.Err() != nil {
		return
	}
	e.x.Clear()
	e.s, e.stream, e.conn = nil, nil, nil
	streamQueries.Put(e)
}

// keepBuffers makes e reusable. packet and msg, which may have grown, are its query and reply.
func (e *streamQuery) keepBuffers(packet, msg []byte) {
	e.in, e.out, e.reusable = reuseBuffer(e.in, packet), reuseBuffer(e.out, msg), true
}

// beginReply notes that the reply is going to be written; false if e has lost its place, so that the
// query is refused, which it counts. A client that doesn't read its reply loses the place only if another one
// needs it.
func (e *streamQuery) beginReply() bool {
	e.replying.Store(true)
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

// releasePlace gives the place of e's query back. A large reply keeps it until it is written.
func (e *streamQuery) releasePlace() {
	if !e.x.HasRoom() {
		e.s.waiting.Release(&e.waiting)
	}
}

// answerStream walks the path for packet, and waits where it has to; nil is for what is no query.
// buf is for the reply. A query that finds a free place takes it at once, so that it walks the
// path only once. Another one takes a place from a client only if it has to wait.
func (s *Server) answerStream(rt *resolver.Routes, e *streamQuery, packet, buf []byte) []byte {
	x := &e.x
	x.Query.Packet, x.Arrival = packet, clock.Now()
	free := s.waiting.AcquireFree(&e.waiting, s.limits.PodRanges.Client(x.Client.Addr()))
	if free {
		defer e.releasePlace()
		x.Place = e.waiting.Client()
		if e.expectsLarge() {
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

// expectsLarge reports whether the reply is probably large, like the last one on e's connection.
func (e *streamQuery) expectsLarge() bool { return e.conn != nil && e.conn.large.Load() }

// noteSize notes whether the next reply on e's connection is probably large.
func (e *streamQuery) noteSize(msg []byte) {
	if len(msg) > largeReply && e.conn != nil {
		e.conn.large.Store(true)
	}
}

// serveLarge is [Server.serve] for a query, without permission to wait, whose reply is probably large: it is made in turn, and
// has room until the caller calls [resolver.Request.ReleaseRoom]. x holds p. large is cleared if the reply is small. With any outcome but
// [resolver.Answered] there is neither a reply nor room. err is why there was no turn.
func (s *Server) serveLarge(rt *resolver.Routes, x *resolver.Request, p *share.Place, buf []byte, large *atomic.Bool) (msg []byte, o resolver.Outcome, err error) {
	if err = x.TakeRoom(p); err != nil {
		return nil, o, err
	}
	if err = x.Turns.Take(p, x.Place); err != nil {
		x.ReleaseRoom()
		return nil, o, err
	}
	msg, o = s.serve(rt, x, buf)
	x.Turns.Pass(x.Place)
	if len(msg) <= largeReply {
		large.Store(false)
	}
	if o != resolver.Answered {
		x.ReleaseRoom()
	}
	return msg, o, nil
}
