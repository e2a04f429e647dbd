package server

import (
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// dohPath is the path for queries, as in CoreDNS and most clients' configurations.
	dohPath = "/dns-query"
	// dnsMessageType is the media type of queries and replies (RFC 8484, 6).
	dnsMessageType = "application/dns-message"
	// maxMaxAge limits the max-age of a reply, in seconds. CoreDNS has the same limit.
	maxMaxAge = 3600
	// defaultMaxAge is the max-age, in seconds, of replies without a TTL of their own:
	// failures, and denials without a SOA record. CoreDNS uses the same, and the cache keeps
	// failures for as long.
	defaultMaxAge = 5
)

// dohHandler answers requests at one address, over any version of HTTP (RFC 8484, 4).
type dohHandler struct {
	s *Server
	l *listener
	// statuses counts replies by status.
	statuses *httpStatuses
	// maxBody limits the query in a body, in bytes.
	maxBody int64
}

func (h *dohHandler) admit(w http.ResponseWriter, r *http.Request, client netip.AddrPort, stripe int) bool {
	switch {
	case r.URL.Path != dohPath:
		h.writeError(w, http.StatusNotFound)
	case h.l.overLimit(client, stripe):
		h.writeError(w, http.StatusTooManyRequests)
	default:
		return true
	}
	return false
}

func (h *dohHandler) serve(e *streamQuery, w http.ResponseWriter, r *http.Request) {
	packet, status := h.readQuery(w, r, e.in[:0])
	switch {
	case status == http.StatusOK:
	case e.inFlight.Err() != nil:
		h.reject(w, e, shedClient)
		return
	default:
		h.writeError(w, status)
		return
	}
	msg := e.answer(h.l.config.Load().Routes, packet, e.out)
	switch {
	case e.x.Rejected():
		h.writeError(w, http.StatusServiceUnavailable)
		return
	case isRequestError(msg):
		h.writeError(w, http.StatusBadRequest)
		return
	case e.x.OverLimit():
		h.writeError(w, http.StatusTooManyRequests)
		return
	case !e.beginReply():
		h.writeError(w, http.StatusServiceUnavailable)
		return
	}
	h.statuses.add(http.StatusOK)
	if writeReply(w, msg) != nil {
		return
	}
	e.keepBuffers(packet, msg)
}

func (h *dohHandler) reject(w http.ResponseWriter, e *streamQuery, reason int) {
	h.l.countRejected(e.x.Client, e.x.Stripe, reason)
	h.writeError(w, http.StatusServiceUnavailable)
}

func (h *dohHandler) fail(w http.ResponseWriter) { h.writeError(w, http.StatusInternalServerError) }

// isRequestError reports whether msg, a reply or nil, is for something that could not be
// parsed as a query. As in CoreDNS, that is an HTTP error.
func isRequestError(msg []byte) bool {
	if len(msg) != wire.HeaderLen {
		return msg == nil
	}
	rcode := wire.Rcode(msg[3] & 0xf)
	return rcode == wire.FormErr || rcode == wire.NotImp
}

// readQuery reads the query of r into buf. It returns status 200 if there is one.
func (h *dohHandler) readQuery(w http.ResponseWriter, r *http.Request, buf []byte) ([]byte, int) {
	switch r.Method {
	case http.MethodPost:
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != dnsMessageType {
			return nil, http.StatusUnsupportedMediaType
		}
		return readBody(http.MaxBytesReader(w, r.Body, h.maxBody), buf)
	case http.MethodGet:
		values := r.URL.Query()["dns"]
		if len(values) != 1 || values[0] == "" {
			return nil, http.StatusBadRequest
		}
		packet, err := base64.RawURLEncoding.AppendDecode(buf, []byte(values[0]))
		if err != nil {
			return nil, http.StatusBadRequest
		}
		return packet, http.StatusOK
	default:
		w.Header().Set("Allow", "GET, POST")
		return nil, http.StatusMethodNotAllowed
	}
}

// readBody appends body to buf, which grows by what is received.
func readBody(body io.Reader, buf []byte) ([]byte, int) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		var large *http.MaxBytesError
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return buf, http.StatusOK
		case errors.As(err, &large):
			return nil, http.StatusRequestEntityTooLarge
		default:
			return nil, http.StatusBadRequest
		}
	}
}

// writeReply writes msg with its freshness lifetime (RFC 8484, 5.1).
func writeReply(w http.ResponseWriter, msg []byte) error {
	fresh := uint32(defaultMaxAge)
	if rcode := wire.Rcode(msg[3] & 0xf); rcode == wire.NoError || rcode == wire.NXDomain {
		if ttl, ok := wire.MinTTL(msg); ok {
			fresh = min(ttl, maxMaxAge)
		}
	}
	header := w.Header()
	header.Set("Content-Type", dnsMessageType)
	header.Set("Cache-Control", "max-age="+strconv.FormatUint(uint64(fresh), 10))
	header.Set("Content-Length", strconv.Itoa(len(msg)))
	_, err := w.Write(msg)
	return err
}

// writeError replies with an HTTP status.
func (h *dohHandler) writeError(w http.ResponseWriter, status int) {
	h.statuses.add(status)
	writeHTTPStatus(w, status)
}

// writeHTTPStatus replies without a body: over HTTP/2 a client may refuse to receive one, and a header it
// may not (RFC 9113, 5.2.1).
func writeHTTPStatus(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}

// countedStatuses lists every HTTP status that the server replies with.
var countedStatuses = [...]int{
	http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
	http.StatusUnsupportedMediaType, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable,
}

// httpStatuses counts the replies at one address by status, in the order of
// countedStatuses.
type httpStatuses [len(countedStatuses)]atomic.Uint64

func (c *httpStatuses) add(status int) {
	if i := slices.Index(countedStatuses[:], status); i >= 0 {
		c[i].Add(1)
	}
}
