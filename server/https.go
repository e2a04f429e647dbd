package server

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

const (
	// maxHTTP2Streams is how many requests a client may have under way over one HTTP/2
	// connection. RFC 9113, 5.1.2 advises against less than 100, and a client that
	// has more opens another connection.
	maxHTTP2Streams = 100
	// maxHTTPHeader bounds a request's header: a query of 4 KiB in a URL takes 5,500
	// bytes. Half of it would leave little room for a browser's own lines; twice as
	// much, times the requests that may wait, is memory that no query needs. Longer
	// queries go into a body.
	maxHTTPHeader = 16 << 10
	// http2Window is how much of bodies may be on its way in one HTTP/2 connection: two
	// of the largest. It is also the least that the protocol allows for one of them.
	http2Window = 128 << 10
	// http2FrameSize is the largest HTTP/2 frame that is read, and the least there may be.
	http2FrameSize = 16 << 10
	// maxAnswerTime is what a request may take besides the time that its client takes:
	// upstreams give up after five seconds, and a search path or an alias may take a
	// second look. With half of it the slowest answers would be thrown away.
	maxAnswerTime = 10 * time.Second
)

// httpsServer is where clients of DNS over HTTPS come in (RFC 8484). It is package net/http's
// server behind the listener's own door: who may come in, and for how long, is decided
// as it is for TCP, and the handshake is over when net/http gets a connection.
type httpsServer struct {
	s *Server
	l *listener
	// statuses counts replies.
	statuses *httpStatuses
	http     *http.Server
	conns    chan net.Conn
	done     chan struct{} // is closed when nobody comes in any more

	mu       sync.Mutex
	draining bool
	requests *share.Places // requests under way
	drained  chan struct{} // is closed when closed is set and active is 0
}

func (s *Server) newHTTPSServer(l *listener) *httpsServer {
	t := s.timeouts(l)
	h := &httpsServer{s: s, l: l, statuses: s.statusesAt(l.addr), conns: make(chan net.Conn), requests: share.NewPlaces(s.limits.Waiting), done: make(chan struct{}), drained: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	h.http = &http.Server{
		Handler:        h,
		Protocols:      &protocols,
		ReadTimeout:    t.read,
		WriteTimeout:   t.write + maxAnswerTime,
		IdleTimeout:    t.idle,
		MaxHeaderBytes: maxHTTPHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxHTTP2Streams, MaxReadFrameSize: http2FrameSize, WriteByteTimeout: t.write,
			MaxReceiveBufferPerConnection: http2Window, MaxReceiveBufferPerStream: http2Window,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				return context.WithValue(ctx, connKey{}, t.NetConn())
			}
			return ctx
		},
		ErrorLog: log.New(io.Discard, "", 0), // of what clients do wrong there is no end
	}
	return h
}

// connKey is under which the context of a request has its *visit.
type connKey struct{}

// serve serves until leave is called.
func (h *httpsServer) serve() { _ = h.http.Serve(h) }

// shutdown lets the requests under way end, at the latest when the server does, and
// closes all connections.
func (h *httpsServer) shutdown() {
	h.mu.Lock()
	h.draining = true
	if h.requests.Used() == 0 {
		close(h.drained)
	}
	h.mu.Unlock()
	h.l.tcp.closeIdle() // net/http would wait five seconds for the first request of each
	_ = h.http.Shutdown(h.s.ctx)
	_ = h.http.Close()
	<-h.drained
}

// beginRequest counts a request, and gives what the caller has to call when it is over; nil if
// there is no room for it. Requests are divided among clients as the places are in which
// queries wait: bodies that come slowly hold none of those.
func (h *httpsServer) beginRequest(v *httpsConn) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		h.s.shed[shedCapacity].Add(1)
		return nil
	}
	place, verdict := h.requests.Take(v.client.Addr())
	if !h.s.admitted(verdict) {
		return nil
	}
	v.waiting.Add(1)
	v.lastQuery.Store(int64(clock.Now()))
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		v.waiting.Add(-1)
		h.requests.Give(place)
		if h.draining && h.requests.Used() == 0 {
			close(h.drained)
		}
	}
}

// Accept gives net/http the next connection, whose handshake is over.
func (h *httpsServer) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close makes Accept end. Net/http calls it, once.
func (h *httpsServer) Close() error {
	close(h.done)
	return nil
}

// Addr is the address that is listened on.
func (h *httpsServer) Addr() net.Addr { return h.l.tcp.Addr() }

// httpsConn is one connection over HTTPS.
type httpsConn struct {
	*net.TCPConn
	connState
	h    *httpsServer
	once sync.Once
}

func (h *httpsServer) newConn(conn *net.TCPConn, lane int) *httpsConn {
	v := &httpsConn{TCPConn: conn, h: h}
	v.init(conn, lane)
	return v
}

// serve makes the handshake and hands the connection over to net/http.
func (v *httpsConn) serve() {
	conn := tls.Server(v, v.h.l.config.Load().Certificate.tlsConfig(config.DNSOverHTTPS))
	if !v.h.s.handshake(v.h.l, &v.connState, conn) || !v.h.l.tcp.hijack(&v.connState) {
		_ = v.Close()
		return
	}
	select {
	case v.h.conns <- conn:
	case <-v.h.done:
		_ = v.Close()
	}
}

// Close closes the connection and forgets it. It may be called again.
func (v *httpsConn) Close() (err error) {
	err = net.ErrClosed
	v.once.Do(func() {
		err = v.TCPConn.Close()
		v.h.l.tcp.remove(&v.connState)
	})
	return err
}
