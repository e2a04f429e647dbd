package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxInFlightDoH bounds the queries in flight per server, including those that wait for
	// a connection; each has a goroutine. Servers commonly allow 100 to 250 requests at
	// once on one connection.
	maxInFlightDoH = 1024
	// messageType is the media type of DNS messages (RFC 8484, 6).
	messageType = "application/dns-message"
	// defaultPath is the customary path.
	defaultPath = "/dns-query"
	// maxHeaderBytes bounds the header of a response. Ordinary ones have a tenth of that.
	maxHeaderBytes = 16 << 10
	// pingTimeout is how long a connection may be silent before it gets an HTTP/2 ping, and
	// how long the ping may take.
	pingTimeout = time.Second
)

// dohOptions are the settings of a [dohTransport].
type dohOptions struct {
	connOptions
	// method is POST or GET; "" means POST.
	method string
}

// httpCodec puts queries into HTTP requests and takes the replies out of the responses. It is
// safe for concurrent use.
type httpCodec interface {
	// setQuery sets r's method and puts query into it. r keeps query.
	setQuery(r *http.Request, query []byte)
	// readReply returns the reply to query in resp, and closes resp's body.
	readReply(resp *http.Response, query []byte) ([]byte, error)
}

// dohTransport is a transport over HTTPS (RFC 8484), or with another codec over gRPC, with a
// few connections. Each carries as many queries at once as the server allows with HTTP/2, or one
// with HTTP/1.1. Further queries wait. Proxies from the environment are not used: reaching them
// may require this agent.
//
// The transport manages the connections itself because [http.Transport] opens one for each
// waiting query or, with a limit, lets queries wait without bound.
//
// Each query has its own goroutine and buffers, so that cancel can return it at once. The
// HTTP request ends with its context.
type dohTransport struct {
	addr   string // address to connect to
	url    url.URL
	host   string
	header http.Header // of all requests; read-only
	codec  httpCodec
	client *http.Transport
	connTransport
	waitQueue waitQueue

	// The lock guards these.
	open       []*dohConn            // take queries
	live       map[*dohConn]struct{} // not closed
	connecting bool                  // a connection is being opened
	inFlight   share.Counts
}

// dohRequest is one query in flight. query is nil once it is canceled; the transport's lock
// guards it.
type dohRequest struct {
	query          *query
	conn           *dohConn // that it was sent on last; nil: none yet
	client         share.Client
	clientInFlight int // the client's other queries in flight at the start
	message        []byte
	deadline       time.Time
	cancel         context.CancelFunc
}

// newDoHTransport opens no connection. addr is the address of target, whose name is used in
// the URL and must match the certificate unless the options have a ServerName.
func newDoHTransport(target config.Target, addr netip.AddrPort, opts dohOptions) transport {
	if opts.tls == nil {
		opts.tls = new(tls.Config)
	}
	t := newHTTPTransport(target, addr, opts.connOptions)
	t.url.Path = cmp.Or(target.Path, defaultPath)
	t.codec = dohCodec{cmp.Or(opts.method, http.MethodPost)}
	t.header = http.Header{
		"Accept":     {messageType},
		"User-Agent": {""}, // omitted: it would identify the client (RFC 8484, 8.2)
	}
	if opts.method != http.MethodGet {
		t.header["Content-Type"] = []string{messageType}
	}
	return t
}

// newHTTPTransport returns a transport that still needs a path, a header and a codec. Without
// TLS settings it does not use TLS.
func newHTTPTransport(target config.Target, addr netip.AddrPort, opts connOptions) *dohTransport {
	opts.setDefaults()
	host, name, scheme := addr.String(), target.Host, "http"
	if opts.tls != nil {
		cfg := opts.tls.Clone()
		name = cmp.Or(target.Host, cfg.ServerName)
		cfg.ServerName = cmp.Or(cfg.ServerName, target.Host)
		opts.tls, scheme = clientTLS(cfg, addr.Addr()), "https"
	}
	if name != "" {
		host = net.JoinHostPort(name, strconv.Itoa(int(addr.Port())))
	}
	t := &dohTransport{
		addr: addr.String(),
		url:  url.URL{Scheme: scheme, Host: host},
		host: strings.TrimSuffix(host, ":443"),
		live: make(map[*dohConn]struct{}),
	}
	t.init(opts)
	t.client = &http.Transport{
		DialContext:            t.dial,
		TLSClientConfig:        opts.tls,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  pingTimeout,
			PingTimeout:      pingTimeout,
			WriteByteTimeout: opts.connectTimeout,
		},
	}
	return t
}

// start is [transport.start].
func (t *dohTransport) start(q *query) {
	binary.BigEndian.PutUint16(q.frame[2:], 0) // cache friendly (RFC 8484, 4.1)
	r := &dohRequest{query: q, client: q.client, message: bytes.Clone(q.message()), deadline: q.deadline}
	if err := t.begin(r); err != nil {
		q.complete(err)
	}
}

func (t *dohTransport) begin(r *dohRequest) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return ErrClosed
	case t.inFlight.Total() >= maxInFlightDoH:
		return ErrBusy
	}
	ctx, cancel := context.WithDeadline(t.ctx, r.deadline)
	r.cancel, r.query.dohRequest = cancel, r
	r.clientInFlight = t.inFlight.Of(r.client)
	t.inFlight.Add(r.client)
	t.tasks.Go(func() {
		defer cancel()
		msg, err := t.roundTrip(ctx, r)
		t.finish(r, msg, err)
	})
	return nil
}

// finish completes the query of r, unless it was canceled.
func (t *dohTransport) finish(r *dohRequest, msg []byte, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight.Remove(r.client)
	q := r.query
	if q == nil {
		return
	}
	q.dohRequest = nil
	switch {
	case t.closed:
		err = ErrClosed
	case err != nil && !isLocal(err) && !time.Now().Before(r.deadline):
		err = os.ErrDeadlineExceeded
	case err == nil && !q.matches(msg):
		t.unexpected.Add(1)
		err = errMismatch
	}
	if err == nil {
		q.growReply(len(msg))
		q.replyLen = copy(q.reply, msg)
	}
	q.complete(err)
}

var (
	errMismatch = errors.New("the reply does not match the query")
	errTooLong  = errors.New("the reply is longer than a DNS message")
)

// roundTrip sends the request, and again if a working connection fails or the server
// refuses the request on it.
func (t *dohTransport) roundTrip(ctx context.Context, r *dohRequest) ([]byte, error) {
	for resent := 0; ; resent++ {
		c, err := t.acquireConn(ctx, r)
		if err != nil {
			return nil, err
		}
		resp, err := c.conn.RoundTrip(t.newHTTPRequest(ctx, r.message)) //nolint:bodyclose // readReply closes it
		var msg []byte
		again := err != nil && ctx.Err() == nil && c.answered.Load() && resent < maxResends && t.mayResend()
		if err == nil {
			if c.answered.CompareAndSwap(false, true) {
				t.mu.Lock()
				t.pause.end()
				t.mu.Unlock()
				t.waitQueue.wake(c.conn.Available(), nil)
			}
			msg, err = t.codec.readReply(resp, r.message)
		}
		t.release(c, resp != nil)
		if !again {
			return msg, err
		}
	}
}

// newHTTPRequest returns the HTTP request for query.
func (t *dohTransport) newHTTPRequest(ctx context.Context, query []byte) *http.Request {
	u := t.url
	r := &http.Request{URL: &u, Header: t.header, Host: t.host}
	t.codec.setQuery(r, query)
	return r.WithContext(ctx)
}

// setBody makes r a POST request with body.
func setBody(r *http.Request, body []byte) {
	r.Method, r.ContentLength = http.MethodPost, int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
}

// dohCodec is RFC 8484, 4.1. Its method is POST or GET.
type dohCodec struct{ method string }

func (c dohCodec) setQuery(r *http.Request, query []byte) {
	if c.method == http.MethodPost {
		setBody(r, query)
		return
	}
	r.Method = c.method
	r.URL.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(query)
}

func (dohCodec) readReply(resp *http.Response, _ []byte) ([]byte, error) {
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, newHTTPStatusError(resp)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != messageType {
		return nil, fmt.Errorf("unexpected media type %.60q instead of %s; check the upstream's URL", resp.Header.Get("Content-Type"), messageType)
	}
	msg, err := readBody(resp, wire.MaxMessage)
	if age := ageOf(resp.Header); age > 0 && err == nil {
		wire.Age(msg, age)
	}
	return msg, err
}

// ageOf returns for how many seconds HTTP caches have kept a response with the header h, whatever
// its method. The TTLs of the reply are from the time before (RFC 8484, 5.1). An invalid Age is
// ignored, and the first of several counts (RFC 9111, 5.1).
func ageOf(h http.Header) uint32 {
	first, _, _ := strings.Cut(h.Get("Age"), ",")
	age, err := strconv.ParseUint(strings.TrimSpace(first), 10, 32) // too large a number is the largest
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return uint32(age)
}

// readBody returns the body of resp, which has limit bytes at most.
func readBody(resp *http.Response, limit int64) ([]byte, error) {
	body := bytes.NewBuffer(make([]byte, 0, min(max(resp.ContentLength, 0)+1, limit+1)))
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, limit+1)); err != nil {
		return nil, fmt.Errorf("reading the reply: %w", err)
	}
	if int64(body.Len()) > limit {
		return nil, errTooLong
	}
	return body.Bytes(), nil
}

// cancel is [transport.cancel].
func (t *dohTransport) cancel(q *query) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := q.dohRequest
	if r == nil {
		return false
	}
	r.query, q.dohRequest = nil, nil
	if r.conn != nil {
		r.conn.canceled = true
	}
	r.cancel()
	return true
}

// close is [transport.close].
func (t *dohTransport) close() {
	t.mu.Lock()
	t.closed = true
	t.stop()
	var all []*dohConn
	for c := range t.live {
		all = append(all, c)
	}
	clear(t.live)
	t.open = nil
	t.mu.Unlock()
	for _, c := range all {
		_ = c.conn.Close()
	}
	t.tasks.Wait()
}
