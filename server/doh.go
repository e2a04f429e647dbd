package server

import (
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// dohPath is where queries are asked, as CoreDNS has it and nearly all clients are
	// told.
	dohPath = "/dns-query"
	// dohType is the type of a query and of a reply (RFC 8484, 6).
	dohType = "application/dns-message"
	// mostFresh is the longest a reply may be said to hold, in seconds: CoreDNS's bound.
	mostFresh = 3600
	// leastFresh is how long a reply holds that doesn't say it: a failure, or a denial
	// without an SOA record. It is CoreDNS's, and what the cache keeps a failure for.
	leastFresh = 5
)

// errand is what answering a request takes.
type errand struct {
	x       exchange
	in, out []byte
}

var errands = sync.Pool{New: func() any {
	return &errand{in: make([]byte, 0, maxUDPQuery), out: make([]byte, 0, replyBuffer)}
}}

// ServeHTTP answers one request (RFC 8484, 4). What is wrong with the request is
// said in HTTP, and what is wrong with its query in DNS.
func (h *hall) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != dohPath {
		h.fail(w, http.StatusNotFound)
		return
	}
	v, ok := r.Context().Value(visitKey{}).(*visit)
	if !ok {
		h.fail(w, http.StatusInternalServerError)
		return
	}
	end := h.begin(v)
	if end == nil {
		h.fail(w, http.StatusServiceUnavailable)
		return
	}
	defer end()
	defer h.recovered(w)
	e := errands.Get().(*errand)
	packet, status := readQuery(w, r, e.in[:0])
	if status != http.StatusOK {
		h.fail(w, status)
		return
	}
	msg := h.answer(v, e, packet)
	if unread(msg) {
		h.fail(w, http.StatusBadRequest)
		return
	}
	h.count(http.StatusOK)
	if reply(w, msg) != nil {
		return // net/http may still be at it, so that the errand can't be used again
	}
	e.in, e.out, e.x = kept(e.in, packet), kept(e.out, msg), exchange{}
	errands.Put(e)
}

// recovered is for a panic outside of the path, which looks after its own.
func (h *hall) recovered(w http.ResponseWriter) {
	if p := recover(); p != nil {
		h.s.panics.Add(1)
		h.s.log.Error("a request panicked", "panic", p, "stack", string(debug.Stack()))
		h.fail(w, http.StatusInternalServerError)
	}
}

// unread reports whether msg, a reply or nil, is for what could not be read as a query.
// Without HTTP that is an error of DNS, and here, as in CoreDNS, one of the request.
func unread(msg []byte) bool {
	if len(msg) != wire.HeaderLen {
		return msg == nil
	}
	rcode := wire.Rcode(msg[3] & 0xf)
	return rcode == wire.FormErr || rcode == wire.NotImp
}

// answer walks the path, and waits where it has to; nil is for what is no query.
func (h *hall) answer(v *visit, e *errand, packet []byte) []byte {
	s, x := h.s, &e.x
	x.via, x.client, x.lane = tcp, v.client, v.lane
	x.q.Packet, x.start = packet, clock.Now()
	rt := h.l.routes.Load()
	msg, at := s.serve(rt, x, e.out, tcpLimit)
	if at == done {
		return msg
	}
	if !s.acquire(x) {
		return s.full(x, wire.MaxMessage)
	}
	defer s.release(x.place)
	return s.wait(rt, x, at, wire.MaxMessage)
}

// readQuery reads the query out of r, behind buf; the status is 200 if there is one.
func readQuery(w http.ResponseWriter, r *http.Request, buf []byte) ([]byte, int) {
	switch r.Method {
	case http.MethodPost:
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != dohType {
			return nil, http.StatusUnsupportedMediaType
		}
		return readBody(http.MaxBytesReader(w, r.Body, wire.MaxMessage), buf)
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

// readBody reads all of body behind buf, which grows by what really comes.
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

// reply writes msg, and for how long it holds (RFC 8484, 5.1).
func reply(w http.ResponseWriter, msg []byte) error {
	fresh := uint32(leastFresh)
	if rcode := wire.Rcode(msg[3] & 0xf); rcode == wire.NoError || rcode == wire.NXDomain {
		if ttl, ok := wire.Age(msg); ok {
			fresh = min(ttl, mostFresh)
		}
	}
	header := w.Header()
	header.Set("Content-Type", dohType)
	header.Set("Cache-Control", "max-age="+strconv.FormatUint(uint64(fresh), 10))
	header.Set("Content-Length", strconv.Itoa(len(msg)))
	_, err := w.Write(msg)
	return err
}

// fail answers with an error of HTTP.
func (h *hall) fail(w http.ResponseWriter, status int) {
	h.count(status)
	http.Error(w, http.StatusText(status), status)
}

// countedStatuses are all that requests are answered with here.
var countedStatuses = [...]int{
	http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
	http.StatusUnsupportedMediaType, http.StatusInternalServerError, http.StatusServiceUnavailable,
}

// statuses counts replies by their status, in the order of countedStatuses.
type statuses [len(countedStatuses)]atomic.Uint64

func (h *hall) count(status int) {
	if i := slices.Index(countedStatuses[:], status); i >= 0 {
		h.l.routes.Load().Dropped().http[i].Add(1)
	}
}

// EachStatus calls f for each HTTP status that was counted: those of an address are
// where its dropped queries are.
func (s *Stats) EachStatus(f func(status int, n uint64)) {
	for i, status := range countedStatuses {
		if n := s.http[i].Load(); n > 0 {
			f(status, n)
		}
	}
}
