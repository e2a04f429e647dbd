package server

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// maxHTTP2Streams is how many concurrent requests a client may have on one HTTP/2
	// connection. RFC 9113, 5.1.2 recommends at least 100; CoreDNS allows 256, and its plugin grpc
	// has no second connection.
	maxHTTP2Streams = 256
	// maxHTTPHeader limits a request's header. A query of 4 KiB in a URL takes 5,500 bytes;
	// longer queries go into a body.
	maxHTTPHeader = 16 << 10
	// http2Window is how much of request bodies may be in flight on one HTTP/2 connection:
	// two of the largest. It is also the protocol's minimum.
	http2Window = 128 << 10
	// http2FrameSize is the largest HTTP/2 frame that is accepted, the protocol's minimum.
	http2FrameSize = 16 << 10
	// maxAnswerTime is how long the server may take for an answer, in addition to the time
	// that the client takes. Upstreams time out after five seconds, and a search path or an
	// alias may ask them a second time.
	maxAnswerTime = 10 * time.Second
)

// httpsServer serves DNS over HTTPS (RFC 8484) or over gRPC with net/http. The TCP listener admits,
// times out and evicts its connections as it does for TCP, and net/http receives them
// after the TLS handshake. It implements net.Listener for net/http.
type httpsServer struct {
	s        *Server
	l        *listener
	protocol httpProtocol
	http     *http.Server
	requests *streamPlaces
	conns    chan net.Conn
	done     chan struct{} // closed when no more connections are accepted
}

// httpProtocol is how queries and replies are carried in HTTP requests.
type httpProtocol interface {
	// admit reports whether r is to be read. If not, it replies.
	admit(w http.ResponseWriter, r *http.Request, client netip.AddrPort, stripe int) bool
	// reject replies to the request e whose query has not been read, and counts it.
	reject(w http.ResponseWriter, e *streamQuery, reason int)
	// serve answers the request e, whose client is set. It makes e reusable unless its buffers may
	// still be in use. Errors of the request are reported by the protocol, errors of its query by a
	// DNS reply.
	serve(e *streamQuery, w http.ResponseWriter, r *http.Request)
	// fail ends a request that the server can't answer because of a bug.
	fail(w http.ResponseWriter)
}

func newHTTPSServer(l *listener) *httpsServer {
	s := l.s
	t := l.timeouts()
	h := &httpsServer{s: s, l: l, requests: newStreamPlaces(s.limits.Waiting), conns: make(chan net.Conn), done: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	if l.config.Load().Transport == config.DNSOverGRPC {
		protocols.SetUnencryptedHTTP2(true)
		h.protocol = grpcHandler{s, l}
	} else {
		protocols.SetHTTP1(true)
		h.protocol = &dohHandler{s: s, l: l, statuses: countersAt(s.httpStatuses, l.addr), maxBody: wire.MaxMessage}
	}
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
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: log.New(io.Discard, "", 0), // clients' mistakes are not worth a log line
	}
	return h
}

// connKey is the context key of a request's *httpsConn.
type connKey struct{}

// serve serves connections until shutdown is called.
func (h *httpsServer) serve() { _ = h.http.Serve(h) }

// shutdown lets current requests finish, at the latest until the server stops, and closes
// all connections. It blocks until then.
func (h *httpsServer) shutdown() {
	h.requests.drain()
	h.l.tcp.closeUnused() // net/http would wait five seconds for the first request of a new connection
	_ = h.http.Shutdown(h.s.ctx)
	_ = h.http.Close()
	<-h.requests.drained
}

// ServeHTTP answers one request.
func (h *httpsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, ok := r.Context().Value(connKey{}).(*httpsConn)
	if !ok {
		h.protocol.fail(w)
		return
	}
	v.requested.Store(true)
	if !h.protocol.admit(w, r, v.client, v.stripe) {
		return
	}
	control := http.NewResponseController(w)
	e := newStreamQuery(h.s, control)
	e.x.Proto, e.x.Client, e.x.Stripe, e.x.Encrypted = resolver.TCP, v.client, v.stripe, r.TLS != nil
	if !h.requests.begin(&v.connActivity, e) {
		h.protocol.reject(w, e, shedCapacity)
		e.reusable = true
		e.release()
		return
	}
	defer h.requests.end(&v.connActivity, e)
	defer recoverRequest(h.s, w, h.protocol)
	if r.ProtoMajor == 2 {
		e.held = &v.held
	}
	h.protocol.serve(e, w, r)
	if r.ProtoMajor == 2 && e.replying.Load() {
		// Otherwise net/http would write it after the end of this method, and wait without a place
		// for a client that doesn't allow it (RFC 9113, 5.2).
		_ = control.Flush()
	}
}

// recoverRequest handles panics outside of the query path, which handles its own.
func recoverRequest(s *Server, w http.ResponseWriter, p httpProtocol) {
	if cause := recover(); cause != nil {
		s.panics.Add(1)
		s.log.Error("HTTP request panicked", "panic", cause, "stack", string(debug.Stack()))
		p.fail(w)
	}
}

// Accept returns the next connection to net/http, after its TLS handshake.
func (h *httpsServer) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close makes Accept return. Only net/http calls it, once.
func (h *httpsServer) Close() error {
	close(h.done)
	return nil
}

// Addr returns the listening address.
func (h *httpsServer) Addr() net.Addr { return h.l.tcp.Addr() }

// httpsConn is one connection over HTTPS.
type httpsConn struct {
	*net.TCPConn
	connState
	h    *httpsServer
	held heldWrites
	once sync.Once
}

// Write writes b, or holds it.
func (v *httpsConn) Write(b []byte) (int, error) { return v.held.Write(b) }

func (h *httpsServer) newConn(conn *net.TCPConn, stripe int) *httpsConn {
	v := &httpsConn{TCPConn: conn, h: h, held: heldWrites{conn: conn}}
	v.init(conn, stripe, h.s.limits.PodRanges)
	return v
}

// serve performs the TLS handshake and passes the connection to net/http.
func (v *httpsConn) serve() {
	conn, ok := v.secure()
	if !ok || !v.h.l.tcp.hijack(&v.connState) {
		_ = v.Close()
		return
	}
	select {
	case v.h.conns <- conn:
	case <-v.h.done:
		_ = v.Close()
	}
}

// secure performs the TLS handshake. A gRPC server without a certificate has none: its clients must
// send the preface of HTTP/2 within the read timeout, after which net/http removes this deadline.
func (v *httpsConn) secure() (net.Conn, bool) {
	l := v.h.l
	cfg := l.config.Load()
	if cfg.Certificate == nil {
		return v, l.tcp.setDeadline(&v.connState, time.Now().Add(l.timeouts().read))
	}
	conn := tls.Server(v, cfg.Certificate.tlsConfig(cfg.Transport))
	return conn, l.handshake(&v.connState, conn)
}

// Close closes the connection and removes it from the listener. It may be called again.
func (v *httpsConn) Close() (err error) {
	err = net.ErrClosed
	v.once.Do(func() {
		err = v.TCPConn.Close()
		v.h.l.tcp.remove(&v.connState)
	})
	return err
}
