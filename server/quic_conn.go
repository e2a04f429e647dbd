package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

// quicError is why a connection or a stream is closed, as an error code of DNS over QUIC
// (RFC 9250, 8.4).
type quicError uint8

const (
	quicNoError quicError = iota
	quicInternalError
	quicProtocolError
	quicRequestCancelled
	quicExcessiveLoad
	quicErrors // the number of codes
)

// http3Errors are the codes of HTTP/3 for the same reasons (RFC 9114, 8.1).
var http3Errors = [quicErrors]http3.ErrCode{
	http3.ErrCodeNoError, http3.ErrCodeInternalError, http3.ErrCodeGeneralProtocolError, http3.ErrCodeRequestCanceled, http3.ErrCodeExcessiveLoad,
}

// quicConn is one connection over QUIC. One goroutine accepts its streams; each query is answered
// by a goroutine of its own, which holds a place among the streams of the listener.
type quicConn struct {
	connActivity
	q      *quicListener
	client netip.AddrPort
	// handshaking is set until the handshake has ended. Guarded by q.mu.
	handshaking bool
	unwatch     func() bool // ends the watch for the end of the handshake

	conn   *quic.Conn
	stripe int
	http   *http3.RawServerConn // nil for DNS over QUIC
	idle   *time.Timer

	streams sync.WaitGroup // in flight
}

// serve answers the connection's queries until it is closed.
func (c *quicConn) serve() {
	defer c.q.remove(c)
	if c.q.http != nil && !c.startHTTP() {
		c.close(quicInternalError)
		return
	}
	c.idle = time.AfterFunc(time.Hour, c.checkIdle)
	c.idle.Reset(c.q.l.timeouts().idle)
	defer c.idle.Stop()
	defer c.streams.Wait()
	for {
		str, err := c.conn.AcceptStream(context.Background())
		if err != nil {
			return
		}
		c.serveStream(str)
	}
}

// checkIdle closes the connection if its client has been silent for too long. QUIC's own timeout
// counts a client as active that sends packets without a query.
func (c *quicConn) checkIdle() {
	limit := c.q.l.timeouts().idle
	left := time.Duration(c.lastQuery.Load()) + limit - clock.Now()
	if c.waiting.Load() > 0 {
		left = limit
	}
	if left <= 0 {
		c.close(quicNoError)
		return
	}
	c.idle.Reset(left)
}

// serveStream begins to answer the query in str, or rejects it.
func (c *quicConn) serveStream(str *quic.Stream) {
	var e *streamQuery
	if c.http != nil {
		e = newStreamQuery(c.q.l.s, http3Stream{str})
	} else {
		e = newStreamQuery(c.q.l.s, str)
	}
	if !c.q.requests.begin(&c.connActivity, e) {
		e.reusable = true
		e.release()
		c.rejectStream(str, shedCapacity)
		return
	}
	c.streams.Go(func() {
		defer c.q.requests.end(&c.connActivity, e)
		defer c.recoverPanic(str)
		if c.http != nil {
			c.serveHTTP(str, e)
			return
		}
		c.answer(str, e)
	})
}

// recoverPanic resets a stream whose goroutine panics outside of the query path, which handles its own
// panics.
func (c *quicConn) recoverPanic(str *quic.Stream) {
	if p := recover(); p != nil {
		c.q.l.s.panics.Add(1)
		c.q.l.s.log.Error("QUIC stream panicked", "panic", p, "stack", string(debug.Stack()))
		c.cancel(str, quicInternalError)
	}
}

// rejectStream resets a stream whose query has not been read, and counts it.
func (c *quicConn) rejectStream(str *quic.Stream, reason int) {
	if !c.q.requests.isDraining() {
		c.q.l.countRejected(c.client, c.stripe, reason)
	}
	c.cancel(str, quicExcessiveLoad)
}

// discardTime is how long a stream that is rejected is read from.
const discardTime = 10 * time.Millisecond

// discard reads the rest of str, which usually has arrived. A client over QUIC that is asked to
// stop sending closes the connection (RFC 9250, 4.3.3).
func discard(str *quic.Stream) {
	_ = str.SetReadDeadline(time.Now().Add(discardTime))
	_, _ = io.CopyN(io.Discard, str, maxStreamQuery)
}

// cancel resets str in both directions.
func (c *quicConn) cancel(str *quic.Stream, reason quicError) {
	code := quic.StreamErrorCode(reason)
	if c.http != nil {
		code = quic.StreamErrorCode(http3Errors[reason])
	} else {
		discard(str)
	}
	str.CancelWrite(code)
	str.CancelRead(code)
}

// close closes the connection, which may be closed already.
func (c *quicConn) close(reason quicError) {
	code := quic.ApplicationErrorCode(reason)
	if c.q.http != nil {
		code = quic.ApplicationErrorCode(http3Errors[reason])
	}
	_ = c.conn.CloseWithError(code, "")
}

// http3Stream is a stream that reading HTTP can't be interrupted in. The loss of its place resets
// it.
type http3Stream struct{ *quic.Stream }

// SetReadDeadline resets the stream. Only [streamQuery.abort] calls it, with a time in the past.
func (s http3Stream) SetReadDeadline(time.Time) error {
	s.CancelWrite(quic.StreamErrorCode(http3.ErrCodeExcessiveLoad))
	s.CancelRead(quic.StreamErrorCode(http3.ErrCodeExcessiveLoad))
	return nil
}

// startHTTP sends the server's settings, and starts to read the unidirectional streams of the
// client. It returns false if the connection is closed.
func (c *quicConn) startHTTP() bool {
	var err error
	if c.http, err = c.q.http.NewRawServerConn(c.conn); err != nil {
		return false
	}
	c.streams.Go(func() {
		for {
			str, err := c.conn.AcceptUniStream(context.Background())
			if err != nil {
				return
			}
			c.streams.Go(func() { c.http.HandleUnidirectionalStream(str) })
		}
	})
	return true
}

// serveHTTP reads and answers the request in str.
func (c *quicConn) serveHTTP(str *quic.Stream, e *streamQuery) {
	t, now := c.q.l.timeouts(), time.Now()
	_ = str.SetReadDeadline(now.Add(t.read))
	_ = str.SetWriteDeadline(now.Add(t.read + maxAnswerTime + t.write))
	c.http.HandleRequestStream(str)
	if e.inFlight.Err() != nil {
		c.q.l.countRejected(c.client, c.stripe, shedClient)
		return
	}
	e.reusable = true // its buffers were not used
}

// answer answers the query in str (RFC 9250, 4.2).
func (c *quicConn) answer(str *quic.Stream, e *streamQuery) {
	s, t := c.q.l.s, c.q.l.timeouts()
	_ = str.SetReadDeadline(time.Now().Add(t.read))
	if e.inFlight.Err() != nil { // abort may have come before, and set the deadline that this one has replaced
		_ = str.SetReadDeadline(past)
	}
	buf, err := readDoQ(str, e.in[:0])
	if err != nil {
		c.failRead(str, e, err)
		return
	}
	e.x.Proto, e.x.Client, e.x.Stripe, e.x.Encrypted = resolver.QUIC, c.client, c.stripe, true
	frame, reason := c.reply(e, buf[lengthPrefix:])
	switch reason {
	case quicNoError:
	case quicProtocolError:
		c.fail(reason)
		return
	default:
		c.q.count(reason)
		c.cancel(str, reason)
		return
	}
	_ = str.SetWriteDeadline(time.Now().Add(t.write))
	err = share.ErrEvicted
	if e.beginReply() {
		_, err = str.Write(frame)
	}
	switch {
	case err == nil:
		_ = str.Close()
		c.q.count(quicNoError)
		e.keepBuffers(buf, frame)
	case e.inFlight.Err() != nil:
		c.q.count(quicExcessiveLoad)
		c.cancel(str, quicExcessiveLoad)
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.cut.Add(1)
		c.fail(quicExcessiveLoad)
	}
	// Otherwise the client has stopped the stream or closed the connection.
}

// reply answers packet. It returns the reply with its length, or the error for which there is
// none.
func (c *quicConn) reply(e *streamQuery, packet []byte) ([]byte, quicError) {
	s, rt, x := c.q.l.s, c.q.l.config.Load().Routes, &e.x
	if binary.BigEndian.Uint16(packet) != 0 { // the message ID (RFC 9250, 4.2.1)
		return nil, quicProtocolError
	}
	var msg []byte
	x.Query.Packet, x.Arrival = packet, clock.Now()
	if s.overLimit(rt, x) {
		msg = s.limits.Client.Refuse(e.out[lengthPrefix:lengthPrefix], packet, resolver.QUIC)
	} else {
		msg = e.answer(rt, packet, e.out[lengthPrefix:lengthPrefix])
		if x.Query.Keepalive { // RFC 9250, 5.5.2
			return nil, quicProtocolError
		}
	}
	switch {
	case msg != nil:
		return appendFrame(e.out[:0], msg), quicNoError
	case x.Dropped():
		return nil, quicInternalError
	}
	return nil, quicProtocolError // a reply
}

// failRead ends a stream whose query could not be read.
func (c *quicConn) failRead(str *quic.Stream, e *streamQuery, err error) {
	var reset *quic.StreamError
	switch {
	case errors.Is(err, errDoQFraming):
		c.fail(quicProtocolError)
	case errors.Is(err, errDoQSize):
		c.fail(quicExcessiveLoad)
	case e.inFlight.Err() != nil:
		c.rejectStream(str, shedClient)
		c.q.count(quicExcessiveLoad)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.q.l.s.cut.Add(1)
		c.fail(quicProtocolError) // the missing end of the stream, too, is an error
	case errors.As(err, &reset): // RFC 9250, 4.3.1
		str.CancelWrite(quic.StreamErrorCode(quicRequestCancelled))
	}
	// Otherwise the connection is closed.
}

// fail closes the connection because of its client.
func (c *quicConn) fail(reason quicError) {
	c.q.count(reason)
	c.close(reason)
}
