package server

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"

	"github.com/nodens-dns/nodens/internal/grpcframe"
)

// grpcHandler answers the calls of CoreDNS's gRPC service. A unary call is one HTTP/2 request, so
// the rest is the server of DNS over HTTPS: admission, places, timeouts, streams per connection and
// the end. google.golang.org/grpc would bring a server of its own, whose connections and streams the
// listener could neither time out nor evict.
type grpcHandler struct {
	s *Server
	l *listener
}

func (g grpcHandler) admit(w http.ResponseWriter, r *http.Request, client netip.AddrPort, stripe int) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch {
	case r.Method != http.MethodPost || kind != grpcframe.ContentType && !strings.HasPrefix(kind, grpcframe.ContentType+"+"):
		writeHTTPStatus(w, http.StatusUnsupportedMediaType)
	case r.URL.Path != grpcframe.Path:
		writeStatus(w, grpcframe.Unimplemented, "the only method is "+grpcframe.Path)
	case g.l.overLimit(client, stripe):
		writeStatus(w, grpcframe.ResourceExhausted, "too many queries of this client")
	default:
		return true
	}
	return false
}

func (g grpcHandler) fail(w http.ResponseWriter) {
	writeStatus(w, grpcframe.Internal, "the call panicked")
}

func (g grpcHandler) serve(e *streamQuery, w http.ResponseWriter, r *http.Request) {
	frame, status := readBody(http.MaxBytesReader(w, r.Body, grpcframe.MaxFrame), e.in[:0])
	switch {
	case status == http.StatusOK:
	case e.inFlight.Err() != nil:
		g.reject(w, e, shedClient)
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
	msg := e.answer(g.l.config.Load().Routes, packet, e.out)
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
	if !e.beginReply() {
		writeStatus(w, grpcframe.Unavailable, "too many queries are in flight")
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

func (g grpcHandler) reject(w http.ResponseWriter, e *streamQuery, reason int) {
	g.l.countRejected(e.x.Client, e.x.Stripe, reason)
	writeStatus(w, grpcframe.Unavailable, "too many queries are in flight")
}

// writeMessage ends a call with msg and the status OK.
func writeMessage(w http.ResponseWriter, msg []byte) error {
	header := w.Header()
	header.Set("Content-Type", grpcframe.ContentType)
	header["Date"] = nil // net/http would add it
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
