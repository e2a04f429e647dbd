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
	// hallStreams is how many requests a client may have under way over one HTTP/2
	// connection. RFC 9113, 5.1.2 advises against less than 100, and a client that
	// has more opens another connection.
	hallStreams = 100
	// hallHeader bounds a request's header: a query of 4 KiB in a URL takes 5,500
	// bytes. Half of it would leave little room for a browser's own lines; twice as
	// much, times the requests that may wait, is memory that no query needs. Longer
	// queries go into a body.
	hallHeader = 16 << 10
	// hallWindow is how much of bodies may be on its way in one HTTP/2 connection: two
	// of the largest. It is also the least that the protocol allows for one of them.
	hallWindow = 128 << 10
	// hallFrame is the largest HTTP/2 frame that is read, and the least there may be.
	hallFrame = 16 << 10
	// answerTime is what a request may take besides the time that its client takes:
	// upstreams give up after five seconds, and a search path or an alias may take a
	// second look. With half of it the slowest answers would be thrown away.
	answerTime = 10 * time.Second
)

// hall is where clients of DNS over HTTPS come in (RFC 8484). It is package net/http's
// server behind the listener's own door: who may come in, and for how long, is decided
// as it is for TCP, and the handshake is over when net/http gets a connection.
type hall struct {
	s    *Server
	l    *listener
	http *http.Server
	in   chan net.Conn
	shut chan struct{} // is closed when nobody comes in any more

	mu     sync.Mutex
	closed bool
	active *share.Places // requests under way
	idle   chan struct{} // is closed when closed is set and active is 0
}

func (s *Server) newHall(l *listener) *hall {
	t := s.times(l)
	h := &hall{s: s, l: l, in: make(chan net.Conn), active: share.NewPlaces(s.limits.Waiting), shut: make(chan struct{}), idle: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	h.http = &http.Server{
		Handler:        h,
		Protocols:      &protocols,
		ReadTimeout:    t.sending,
		WriteTimeout:   t.taking + answerTime,
		IdleTimeout:    t.idle,
		MaxHeaderBytes: hallHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: hallStreams, MaxReadFrameSize: hallFrame, WriteByteTimeout: t.taking,
			MaxReceiveBufferPerConnection: hallWindow, MaxReceiveBufferPerStream: hallWindow,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				return context.WithValue(ctx, visitKey{}, t.NetConn())
			}
			return ctx
		},
		ErrorLog: log.New(io.Discard, "", 0), // of what clients do wrong there is no end
	}
	return h
}

// visitKey is under which the context of a request has its *visit.
type visitKey struct{}

// run serves until leave is called.
func (h *hall) run() { _ = h.http.Serve(h) }

// leave lets the requests under way end, at the latest when the server does, and
// closes all connections.
func (h *hall) leave() {
	h.mu.Lock()
	h.closed = true
	if h.active.Used() == 0 {
		close(h.idle)
	}
	h.mu.Unlock()
	h.l.tcp.clear() // net/http would wait five seconds for the first request of each
	_ = h.http.Shutdown(h.s.ctx)
	_ = h.http.Close()
	<-h.idle
}

// begin counts a request, and gives what the caller has to call when it is over; nil if
// there is no room for it. Requests are divided among clients as the places are in which
// queries wait: bodies that come slowly hold none of those.
func (h *hall) begin(v *visit) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		h.s.shed[shedCapacity].Add(1)
		return nil
	}
	place, verdict := h.active.Take(v.client.Addr())
	if !h.s.admitted(verdict) {
		return nil
	}
	v.waiting.Add(1)
	v.heard.Store(int64(clock.Now()))
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		v.waiting.Add(-1)
		h.active.Give(place)
		if h.closed && h.active.Used() == 0 {
			close(h.idle)
		}
	}
}

// Accept gives net/http the next connection, whose handshake is over.
func (h *hall) Accept() (net.Conn, error) {
	select {
	case c := <-h.in:
		return c, nil
	case <-h.shut:
		return nil, net.ErrClosed
	}
}

// Close makes Accept end. Net/http calls it, once.
func (h *hall) Close() error {
	close(h.shut)
	return nil
}

// Addr is the address that is listened on.
func (h *hall) Addr() net.Addr { return h.l.tcp.Addr() }

// visit is one connection over HTTPS.
type visit struct {
	*net.TCPConn
	guest
	h    *hall
	once sync.Once
}

func (h *hall) newVisit(conn *net.TCPConn, lane int) *visit {
	v := &visit{TCPConn: conn, h: h}
	v.init(conn, lane)
	return v
}

// run makes the handshake and hands the connection over to net/http.
func (v *visit) run() {
	conn := tls.Server(v, v.h.l.routes.Load().Door.Certificate.settings(config.DNSOverHTTPS))
	if !v.h.s.shake(v.h.l, &v.guest, conn) || !v.h.l.tcp.release(&v.guest) {
		_ = v.Close()
		return
	}
	select {
	case v.h.in <- conn:
	case <-v.h.shut:
		_ = v.Close()
	}
}

// Close closes the connection and forgets it. It may be called again.
func (v *visit) Close() (err error) {
	err = net.ErrClosed
	v.once.Do(func() {
		err = v.TCPConn.Close()
		v.h.l.tcp.forget(&v.guest)
	})
	return err
}
