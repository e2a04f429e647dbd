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
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxBusyDoH bounds the queries in flight per server; each has a goroutine of
	// its own and, over HTTP/2, a stream. Servers allow 100 to 250 streams: half
	// of this would not queue what is asked while one answer is slow, double waits
	// longer than anybody has time.
	maxBusyDoH = 1024
	// messageType is the media type of DNS messages (RFC 8484, 6).
	messageType = "application/dns-message"
	// defaultPath is where servers answer, by custom.
	defaultPath = "/dns-query"
	// maxHeaders is the bytes of a reply's headers that are read. Usual ones have a
	// tenth; the library's own bound is 10 MiB.
	maxHeaders = 16 << 10
	// pingAfter is how long a connection is silent before it is asked whether it is
	// there: half would ask while a slow name is resolved, double leaves twice as
	// many queries without an answer on one that is gone.
	pingAfter = time.Second
)

// dohOptions is what a DNS-over-HTTPS transport needs beside its target.
type dohOptions struct {
	streamOptions
	// method is POST or GET; "" is POST.
	method string
}

// doh is a transport over HTTPS (RFC 8484), HTTP/2 where the server has it, which is
// one connection for all queries. Proxies that the environment names are not used:
// they are for what people read, and may need this agent to be found.
//
// Every flight has a goroutine of its own and buffers of its own, so that a call is
// given back at once when it is withdrawn. An HTTP request ends with its context.
type doh struct {
	addr   string // what is connected to
	url    url.URL
	host   string
	header http.Header // of all requests; not changed
	dohOptions
	ctx    context.Context // ends everything
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	conns roster

	mu     sync.Mutex
	client *http.Transport
	since  time.Time // when client was made
	flying int
	closed bool

	answered       atomic.Bool // a reply has come
	asked, dialled atomic.Uint64
}

// dohFlight is the flight of one call, which is nil once it is withdrawn; the lock
// of its doh guards it.
type dohFlight struct {
	call   *call
	query  []byte
	until  time.Time
	cancel context.CancelFunc
}

// newDoH opens no connection yet. addr is where target is; its name is in the URL,
// and the certificate must be for it unless the options have a ServerName.
func newDoH(target config.Target, addr netip.AddrPort, opts dohOptions) transport {
	opts.fill()
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
	t := &doh{
		addr: addr.String(),
		url:  url.URL{Scheme: "https", Host: host, Path: cmp.Or(target.Path, defaultPath)},
		host: strings.TrimSuffix(host, ":443"),
		header: http.Header{
			"Accept":     {messageType},
			"User-Agent": {""}, // none: it would tell who asks (RFC 8484, 8.2)
			// Nothing is sent for it, but the library may ask again where a connection breaks.
			"Idempotency-Key": nil,
		},
		dohOptions: opts,
		conns:      roster{all: make(map[*tracked]struct{})},
	}
	if t.method == http.MethodPost {
		t.header["Content-Type"] = []string{messageType}
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.renew(time.Now())
	return t
}

// renew makes the client for queries from now on; t is locked. Connections of the
// one before end with what is in flight, or by time.
func (t *doh) renew(now time.Time) {
	old := t.client
	t.since = now
	t.client = &http.Transport{
		DialContext:            t.dial,
		TLSClientConfig:        t.tls.Clone(),
		TLSHandshakeTimeout:    connectTime,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxConnsPerHost:        maxLinks,
		MaxIdleConnsPerHost:    cmp.Or(t.maxIdle, maxLinks),
		IdleConnTimeout:        t.expire,
		MaxResponseHeaderBytes: maxHeaders,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			SendPingTimeout:             pingAfter,
			PingTimeout:                 pingAfter,
			WriteByteTimeout:            connectTime,
		},
	}
	if old != nil {
		old.CloseIdleConnections()
	}
}

// start is [transport.start].
func (t *doh) start(c *call) {
	binary.BigEndian.PutUint16(c.frame[2:], 0) // so that caches may hold it (RFC 8484, 4.1)
	f := &dohFlight{call: c, query: bytes.Clone(c.message()), until: c.until}
	if err := t.begin(f); err != nil {
		c.land(err)
	}
}

func (t *doh) begin(f *dohFlight) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return ErrClosed
	case t.flying >= maxBusyDoH:
		return errBusy
	}
	if now := time.Now(); t.maxAge > 0 && now.Sub(t.since) >= t.maxAge {
		t.renew(now)
	}
	client := t.client
	ctx, cancel := context.WithDeadline(t.ctx, f.until)
	f.cancel, f.call.flight = cancel, f
	t.flying++
	t.asked.Add(1)
	t.tasks.Go(func() {
		defer cancel()
		msg, err := t.fetch(ctx, client, f.query)
		t.end(f, msg, err)
	})
	return nil
}

// end is the end of f.
func (t *doh) end(f *dohFlight, msg []byte, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flying--
	if t.flying == 0 && t.expire <= 0 {
		t.client.CloseIdleConnections()
	}
	c := f.call
	if c == nil {
		return
	}
	c.flight = nil
	switch {
	case t.closed:
		err = ErrClosed
	case err != nil && !time.Now().Before(f.until):
		err = os.ErrDeadlineExceeded
	case err == nil && !c.answeredBy(msg):
		t.strays.Add(1)
		err = errOther
	}
	if err == nil {
		c.room(len(msg))
		c.got = copy(c.reply, msg)
	}
	c.land(err)
}

var (
	errOther = errors.New("the reply is not to this query")
	errLong  = errors.New("the reply is longer than a DNS message")
)

// fetch asks, once more if a connection breaks that was good before.
func (t *doh) fetch(ctx context.Context, client *http.Transport, query []byte) ([]byte, error) {
	for again := t.answered.Load(); ; again = false {
		resp, err := client.RoundTrip(t.request(ctx, query))
		if err != nil {
			if ctx.Err() == nil {
				t.broken.Add(1)
			}
			if !again || ctx.Err() != nil || refuses(err) {
				return nil, err
			}
			continue
		}
		msg, err := readMessage(resp)
		if err == nil {
			t.answered.Store(true)
		}
		return msg, err
	}
}

// refuses reports whether err says that no connection can be made.
func refuses(err error) bool {
	var dial *net.OpError
	var untrusted *tls.CertificateVerificationError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &untrusted)
}

// request makes the request for query.
func (t *doh) request(ctx context.Context, query []byte) *http.Request {
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
		return nil, errLong
	}
	return msg.Bytes(), nil
}

// roster is the connections that the library holds, so that close can end them. Its
// lock is taken last: the library closes connections while a doh is locked.
type roster struct {
	mu     sync.Mutex
	all    map[*tracked]struct{}
	closed bool
}

// add gives conn as one that leaves the roster when it is closed. It is closed at once
// if the roster is.
func (r *roster) add(conn net.Conn) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		conn.Close()
		return nil, ErrClosed
	}
	c := &tracked{conn, r}
	r.all[c] = struct{}{}
	return c, nil
}

// close closes all connections there are, and all that are added later.
func (r *roster) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for c := range r.all {
		c.Conn.Close()
	}
	clear(r.all)
}

// tracked is a connection of a roster.
type tracked struct {
	net.Conn
	roster *roster
}

// Close is [net.Conn.Close].
func (c *tracked) Close() error {
	c.roster.mu.Lock()
	delete(c.roster.all, c)
	c.roster.mu.Unlock()
	return c.Conn.Close()
}

// dial connects to the server, whatever the URL says.
func (t *doh) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	t.dialled.Add(1)
	d := net.Dialer{KeepAlive: -1}
	if t.source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.source, 0))
	}
	conn, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return nil, err
	}
	return t.conns.add(conn)
}

// withdraw is [transport.withdraw].
func (t *doh) withdraw(c *call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := c.flight
	if f == nil {
		return false
	}
	f.call, c.flight = nil, nil
	f.cancel()
	return true
}

// sweep is [transport.sweep]. Idle connections the library closes itself.
func (t *doh) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.maxAge > 0 && now.Sub(t.since) >= t.maxAge && !t.closed {
		t.renew(now)
	}
}

// close is [transport.close].
func (t *doh) close() {
	t.mu.Lock()
	t.closed = true
	t.cancel()
	t.mu.Unlock()
	t.conns.close()
	t.tasks.Wait()
	t.client.CloseIdleConnections()
}

// reuse is [transport.reuse]. More connections than queries are made at a cold start.
func (t *doh) reuse() (hits, misses uint64) {
	misses = t.dialled.Load()
	return t.asked.Load() - min(misses, t.asked.Load()), misses
}
