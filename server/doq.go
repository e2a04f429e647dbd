package server

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

// doqCodes counts the outcomes of queries over QUIC at one address by error code. A reply is
// code 0, as in CoreDNS.
type doqCodes [quicErrors]atomic.Uint64

// Errors of reading a query, for which the connection is closed.
var (
	errDoQFraming = errors.New("the stream is not one message with its length")
	errDoQSize    = errors.New("the query is too long")
)

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
	e.x.Proto, e.x.Client, e.x.Stripe = resolver.QUIC, c.client, c.stripe
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
		msg = s.answerStream(rt, e, packet, e.out[lengthPrefix:lengthPrefix])
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

func (q *quicListener) count(code quicError) { q.codes[code].Add(1) }

// readDoQ reads one message with its length, and the end of the stream, into buf, which grows by
// what is received (RFC 9250, 4.2).
func readDoQ(str io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := str.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		whole, invalid := checkDoQ(buf)
		switch {
		case invalid != nil:
			return nil, invalid
		case err == nil:
		case errors.Is(err, io.EOF) && whole:
			return buf, nil
		case errors.Is(err, io.EOF):
			return nil, errDoQFraming
		default:
			return nil, err
		}
	}
}

// checkDoQ checks what has been received of a stream. whole is set if it is one message.
func checkDoQ(buf []byte) (whole bool, err error) {
	if len(buf) < lengthPrefix {
		return false, nil
	}
	size := lengthPrefix + int(binary.BigEndian.Uint16(buf))
	switch {
	case size > maxStreamQuery:
		return false, errDoQSize
	case size < lengthPrefix+wire.HeaderLen || len(buf) > size:
		return false, errDoQFraming
	}
	return len(buf) == size, nil
}
