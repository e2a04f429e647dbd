package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/nodens-dns/nodens/server/resolver"
)

// newHTTP3Server returns the part of q that reads HTTP/3 requests. q accepts its connections and
// streams.
func newHTTP3Server(q *quicListener) *http3.Server {
	return &http3.Server{Handler: q, MaxHeaderBytes: maxHTTPHeader, Logger: slog.New(slog.DiscardHandler)} // clients' mistakes are not worth a log line
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

// ServeHTTP answers one request over HTTP/3 as one over HTTPS. Its stream has a place among
// those in flight.
func (q *quicListener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(quicConnKey{}).(*quicConn)
	if !ok {
		q.doh.fail(w)
		return
	}
	if !q.doh.admit(w, r, c.client, c.stripe) {
		return
	}
	e := q.l.s.newStreamQuery(http.NewResponseController(w))
	e.x.Proto, e.x.Client, e.x.Stripe, e.conn = resolver.QUIC, c.client, c.stripe, &c.connActivity
	defer e.release()
	defer q.l.s.recoverRequest(w, &q.doh)
	q.doh.serve(e, w, r)
}
