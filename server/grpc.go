package server

import (
	"errors"
	"net/http"
	"strings"

	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/server/resolver"
)

// grpcHandler answers the calls of CoreDNS's gRPC service. A unary call is one HTTP/2 request, so
// the rest is the server of DNS over HTTPS: admission, places, timeouts, streams per connection and
// the end. google.golang.org/grpc would bring a server of its own, whose connections and streams the
// listener could neither time out nor evict.
type grpcHandler struct{ *httpsServer }

// ServeHTTP answers one call. Errors of the call are reported by a status of gRPC, errors of its
// query by a DNS reply.
func (g grpcHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, ok := r.Context().Value(connKey{}).(*httpsConn)
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch {
	case !ok:
		writeStatus(w, grpcframe.Internal, "no connection")
		return
	case r.Method != http.MethodPost || kind != grpcframe.ContentType && !strings.HasPrefix(kind, grpcframe.ContentType+"+"):
		http.Error(w, http.StatusText(http.StatusUnsupportedMediaType), http.StatusUnsupportedMediaType)
		return
	case r.URL.Path != grpcframe.Path:
		writeStatus(w, grpcframe.Unimplemented, "the only method is "+grpcframe.Path)
		return
	case g.overLimit(v.client.Addr(), v.stripe):
		writeStatus(w, grpcframe.ResourceExhausted, "too many queries of this client")
		return
	}
	e := g.s.newStreamQuery(http.NewResponseController(w))
	e.x.Proto, e.x.Client, e.x.Stripe = resolver.TCP, v.client, v.stripe
	if !g.beginRequest(v, e) {
		g.rejectCall(w, e, shedCapacity)
		e.reusable = true
		e.release()
		return
	}
	defer func() {
		g.endRequest(v, e)
		e.release()
	}()
	defer g.recoverPanic(w)
	g.serveCall(e, w, r)
}

// recoverPanic handles panics outside of the query path, which handles its own.
func (g grpcHandler) recoverPanic(w http.ResponseWriter) {
	if p := recover(); p != nil {
		g.s.requestPanicked(p)
		writeStatus(w, grpcframe.Internal, "the call panicked")
	}
}

// serveCall answers the call e, whose client is set. It is reusable unless net/http may still use its buffers.
func (g grpcHandler) serveCall(e *streamQuery, w http.ResponseWriter, r *http.Request) {
	frame, status := readBody(http.MaxBytesReader(w, r.Body, grpcframe.MaxFrame), e.in[:0])
	switch {
	case status == http.StatusOK:
	case e.inFlight.Err() != nil:
		g.rejectCall(w, e, shedClient)
		return
	case status == http.StatusRequestEntityTooLarge:
		writeStatus(w, grpcframe.ResourceExhausted, grpcframe.ErrTooLarge.Error())
		return
	default:
		writeStatus(w, grpcframe.InvalidArgument, "the message ends early")
		return
	}
	packet, err := grpcframe.Parse(frame)
	if err != nil {
		writeStatus(w, codeOf(err), err.Error())
		return
	}
	msg := g.s.answerStream(g.l.config.Load().Routes, e, packet, e.out)
	switch {
	case e.x.Rejected():
		writeStatus(w, grpcframe.Unavailable, "too many queries wait")
		return
	case isRequestError(msg):
		writeStatus(w, grpcframe.InvalidArgument, "the message is no DNS query")
		return
	case e.x.OverLimit():
		writeStatus(w, grpcframe.ResourceExhausted, "too many queries of this client")
		return
	}
	if writeMessage(w, msg) == nil {
		e.keepBuffers(frame, msg)
	}
}

// codeOf returns the status for an error of [grpcframe.Parse].
func codeOf(err error) grpcframe.Code {
	switch {
	case errors.Is(err, grpcframe.ErrCompressed):
		return grpcframe.Unimplemented
	case errors.Is(err, grpcframe.ErrTooLarge):
		return grpcframe.ResourceExhausted
	}
	return grpcframe.InvalidArgument
}

// rejectCall replies to the call e whose query has not been read, and counts it.
func (g grpcHandler) rejectCall(w http.ResponseWriter, e *streamQuery, reason int) {
	g.s.shed[reason].Add(1)
	g.l.config.Load().Routes.CountRejected(e.x.Stripe, e.x.Client.Addr())
	writeStatus(w, grpcframe.Unavailable, "too many queries are in flight")
}

// writeMessage ends a call with msg and the status OK.
func writeMessage(w http.ResponseWriter, msg []byte) error {
	header := w.Header()
	header.Set("Content-Type", grpcframe.ContentType)
	if _, err := w.Write(grpcframe.AppendHead(make([]byte, 0, grpcframe.MaxOverhead), len(msg))); err != nil {
		return err
	}
	_, err := w.Write(msg)
	header.Set(http.TrailerPrefix+grpcframe.StatusHeader, grpcframe.OK.String())
	return err
}

// writeStatus ends a call without a message.
func writeStatus(w http.ResponseWriter, code grpcframe.Code, message string) {
	header := w.Header()
	header.Set("Content-Type", grpcframe.ContentType)
	header.Set(grpcframe.StatusHeader, code.String())
	header.Set(grpcframe.MessageHeader, message)
	w.WriteHeader(http.StatusOK)
}
