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
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxInFlightDoH bounds the queries in flight per server, those included that wait
	// for a place on a connection; each has a goroutine. Servers allow 100 to 250
	// at once on one connection: half of this is too few for maxLinks of those,
	// double would wait longer than anybody has time.
	maxInFlightDoH = 1024
	// messageType is the media type of DNS messages (RFC 8484, 6).
	messageType = "application/dns-message"
	// defaultPath is where servers answer, by custom.
	defaultPath = "/dns-query"
	// maxHeaderBytes is the bytes of a reply's headers that are read. Usual ones have a
	// tenth; the library's own bound is 10 MiB.
	maxHeaderBytes = 16 << 10
	// pingTimeout is how long a connection is silent before it is asked whether it is
	// there: half would ask while a slow name is resolved, double leaves twice as
	// many queries without an answer on one that is gone.
	pingTimeout = time.Second
)

// dohOptions is what a DNS-over-HTTPS transport needs beside its target.
type dohOptions struct {
	streamOptions
	// method is POST or GET; "" is POST.
	method string
}

// dohTransport is a transport over HTTPS (RFC 8484): a few connections, with HTTP/2 as many
// queries on each as the server allows, with HTTP/1.1 one. What finds no place waits
// for one. Proxies that the environment names are not used: they are for what people
// read, and may need this agent to be found.
//
// Connections are chosen here and not by [http.Transport], which opens one for each
// query that waits, or, told not to, lets queries wait for ever.
//
// Every flight has a goroutine of its own and buffers of its own, so that a call is
// given back at once when it is withdrawn. An HTTP request ends with its context.
type dohTransport struct {
	addr   string // what is connected to
	url    url.URL
	host   string
	header http.Header // of all requests; not changed
	client *http.Transport
	dohOptions
	ctx       context.Context // ends everything
	stop      context.CancelFunc
	tasks     sync.WaitGroup
	waitQueue waitQueue

	mu         sync.Mutex
	open       []*dohConn            // those that take queries
	live       map[*dohConn]struct{} // those that are connected
	connecting bool                  // a connection is being made
	inFlight   share.Division
	closed     bool

	hits, misses atomic.Uint64
}

// dohRequest is the flight of one call, which is nil once it is withdrawn; the lock
// of its doh guards it.
type dohRequest struct {
	query          *query
	client         share.Client
	clientInFlight int // the client's flights before this one
	message        []byte
	deadline       time.Time
	cancel         context.CancelFunc
}

// newDoHTransport opens no connection yet. addr is where target is; its name is in the URL,
// and the certificate must be for it unless the options have a ServerName.
func newDoHTransport(target config.Target, addr netip.AddrPort, opts dohOptions) transport {
	opts.setDefaults()
	opts.method = cmp.Or(opts.method, http.MethodPost)
	if opts.tls == nil {
		opts.tls = new(tls.Config)
	}
	cfg := opts.tls.Clone()
	host := addr.String()
	if name := cmp.Or(target.Host, cfg.ServerName); name != "" {
		host = net.JoinHostPort(name, strconv.Itoa(int(addr.Port())))
	}
	cfg.ServerName = cmp.Or(cfg.ServerName, target.Host)
	opts.tls = clientTLS(cfg, addr.Addr())
	t := &dohTransport{
		addr: addr.String(),
		url:  url.URL{Scheme: "https", Host: host, Path: cmp.Or(target.Path, defaultPath)},
		host: strings.TrimSuffix(host, ":443"),
		header: http.Header{
			"Accept":     {messageType},
			"User-Agent": {""}, // none: it would tell who asks (RFC 8484, 8.2)
		},
		dohOptions: opts,
		live:       make(map[*dohConn]struct{}),
		inFlight:   share.NewDivision(maxInFlightDoH),
	}
	if t.method == http.MethodPost {
		t.header["Content-Type"] = []string{messageType}
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.client = &http.Transport{
		DialContext:            t.dial,
		TLSClientConfig:        opts.tls,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  pingTimeout,
			PingTimeout:      pingTimeout,
			WriteByteTimeout: connectTimeout,
		},
	}
	return t
}

// start is [transport.start].
func (t *dohTransport) start(q *query) {
	binary.BigEndian.PutUint16(q.frame[2:], 0) // so that caches may hold it (RFC 8484, 4.1)
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
	case t.inFlight.Ask(r.client) != share.Fits:
		return ErrBusy
	}
	ctx, cancel := context.WithDeadline(t.ctx, r.deadline)
	r.cancel, r.query.dohRequest = cancel, r
	r.clientInFlight = t.inFlight.Held(r.client)
	t.inFlight.Add(r.client)
	t.tasks.Go(func() {
		defer cancel()
		msg, err := t.roundTrip(ctx, r)
		t.finish(r, msg, err)
	})
	return nil
}

// finish is the end of f.
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
	errMismatch = errors.New("the reply is not to this query")
	errTooLong  = errors.New("the reply is longer than a DNS message")
)

// roundTrip asks, and again where a connection breaks that was good before, or the server
// refuses one query more on it.
func (t *dohTransport) roundTrip(ctx context.Context, r *dohRequest) ([]byte, error) {
	for resent := 0; ; resent++ {
		c, err := t.acquireConn(ctx, r.clientInFlight)
		if err != nil {
			return nil, err
		}
		resp, err := c.conn.RoundTrip(t.newHTTPRequest(ctx, r.message))
		var msg []byte
		again := err != nil && ctx.Err() == nil && c.answered.Load() && resent < maxResends
		if err == nil {
			if c.answered.CompareAndSwap(false, true) {
				t.waitQueue.wake(c.conn.Available(), nil)
			}
			msg, err = readMessage(resp)
		}
		t.release(c, resp != nil)
		if !again {
			return msg, err
		}
	}
}

// newHTTPRequest makes the request for query.
func (t *dohTransport) newHTTPRequest(ctx context.Context, query []byte) *http.Request {
	u := t.url
	r := &http.Request{Method: t.method, URL: &u, Header: t.header, Host: t.host}
	if t.method == http.MethodGet {
		u.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(query)
	} else {
		r.ContentLength = int64(len(query))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(query)), nil }
		r.Body, _ = r.GetBody()
	}
	return r.WithContext(ctx)
}

// readMessage reads the message that resp has, and closes it.
func readMessage(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered with HTTP status %s", resp.Status)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != messageType {
		return nil, fmt.Errorf("the reply has media type %.60q and not %s: is it a DNS server's URL?", resp.Header.Get("Content-Type"), messageType)
	}
	b := make([]byte, 0, min(max(resp.ContentLength, 0)+1, wire.MaxMessage+1))
	msg := bytes.NewBuffer(b)
	if _, err := msg.ReadFrom(io.LimitReader(resp.Body, wire.MaxMessage+1)); err != nil {
		return nil, fmt.Errorf("reading the reply: %w", err)
	}
	if msg.Len() > wire.MaxMessage {
		return nil, errTooLong
	}
	return msg.Bytes(), nil
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

// reuse is [transport.reuse].
func (t *dohTransport) reuse() (hits, misses uint64) { return t.hits.Load(), t.misses.Load() }
