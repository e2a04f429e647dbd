package differential

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"google.golang.org/grpc/status"

	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
)

// transportClient asks one server over one transport. It connects when it has to.
type transportClient interface {
	// ask returns what a client sees of the reply to packet, whose ID is 0.
	ask(ctx context.Context, packet []byte) view
	// close closes the connection. The next query gets a new one.
	close()
}

// transports are the ways to ask, by what query.transport says.
var transports = map[string]func(t *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient{
	"tls": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return &tlsClient{at: at, cfg: cfg}
	},
	"https": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return overHTTP2(at, cfg, http.MethodPost)
	},
	"https-1.1": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return overHTTP1(at, cfg, http.MethodPost)
	},
	"https-get": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return overHTTP2(at, cfg, http.MethodGet)
	},
	"grpc": func(t *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return &grpcClient{t: t, at: at, cfg: cfg}
	},
	"quic": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		cfg = cfg.Clone()
		cfg.NextProtos = []string{"doq"}
		return &quicClient{at: at, cfg: cfg}
	},
	"https3": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return overHTTP3(at, cfg, http.MethodPost)
	},
	"https3-get": func(_ *testing.T, at netip.AddrPort, cfg *tls.Config) transportClient {
		return overHTTP3(at, cfg, http.MethodGet)
	},
}

// failed is the view of an exchange that has no reply: silence where ctx has ended, or what is wrong.
func failed(ctx context.Context, err error) view {
	var (
		application *quic.ApplicationError
		transport   *quic.TransportError
		stream      *quic.StreamError
	)
	switch {
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return parseView(nil, 0)
	case errors.As(err, &application):
		return view{Outcome: fmt.Sprintf("connection closed with code %d", uint64(application.ErrorCode))}
	case errors.As(err, &transport):
		return view{Outcome: "connection closed: " + transport.ErrorCode.String()}
	case errors.As(err, &stream):
		return view{Outcome: fmt.Sprintf("stream reset with code %d", uint64(stream.ErrorCode))}
	}
	// An alert about the client's certificate may be lost: the server closes the connection, in which data has arrived since.
	if _, alert, ok := strings.Cut(err.Error(), "remote error: "); ok && !strings.Contains(alert, "certificate") {
		return view{Outcome: alert}
	}
	return view{Outcome: "connection ends"}
}

// tlsClient asks over TLS (RFC 7858).
type tlsClient struct {
	at   netip.AddrPort
	cfg  *tls.Config
	conn *dns.Conn
}

func (c *tlsClient) ask(ctx context.Context, packet []byte) view {
	if c.conn == nil {
		d := tls.Dialer{Config: c.cfg}
		conn, err := d.DialContext(ctx, "tcp", c.at.String())
		if err != nil {
			return failed(ctx, err)
		}
		c.conn = &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.conn.SetDeadline(deadline)
	}
	_, err := c.conn.Write(packet)
	buf := make([]byte, dns.MaxMsgSize)
	n := 0
	if err == nil {
		n, err = c.conn.Read(buf)
	}
	if err != nil {
		c.close()
		return failed(ctx, err)
	}
	return parseView(buf[:n], 0)
}

func (c *tlsClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.conn = nil
}

// httpClient asks by HTTP requests (RFC 8484).
type httpClient struct {
	url    string // without a path
	method string
	// open returns a transport, and what closes it.
	open func() (http.RoundTripper, func())
	http http.RoundTripper // nil: not opened
	shut func()
}

func overHTTP1(at netip.AddrPort, cfg *tls.Config, method string) *httpClient {
	c := overHTTP2(at, cfg, method)
	c.open = openHTTP(cfg, false)
	return c
}

func overHTTP2(at netip.AddrPort, cfg *tls.Config, method string) *httpClient {
	return &httpClient{url: "https://" + at.String(), method: method, open: openHTTP(cfg, true)}
}

// openHTTP opens a transport of HTTP/2, or of HTTP/1.1 alone.
func openHTTP(cfg *tls.Config, two bool) func() (http.RoundTripper, func()) {
	return func() (http.RoundTripper, func()) {
		t := &http.Transport{TLSClientConfig: cfg, Protocols: new(http.Protocols)}
		t.Protocols.SetHTTP2(two)
		t.Protocols.SetHTTP1(!two)
		return t, t.CloseIdleConnections
	}
}

func overHTTP3(at netip.AddrPort, cfg *tls.Config, method string) *httpClient {
	return &httpClient{url: "https://" + at.String(), method: method, open: func() (http.RoundTripper, func()) {
		t := &http3.Transport{TLSClientConfig: cfg}
		return t, func() { _ = t.Close() }
	}}
}

func (c *httpClient) ask(ctx context.Context, packet []byte) view {
	r := httpRequest{method: c.method, path: "/dns-query", contentType: "application/dns-message", body: packet}
	if c.method == http.MethodGet {
		r.path, r.contentType, r.body = "/dns-query?dns="+base64.RawURLEncoding.EncodeToString(packet), "", nil
	}
	return c.do(ctx, r)
}

// httpRequest is a request as a client may send it.
type httpRequest struct {
	method, path, contentType, accept string
	body                              []byte
}

// do returns the message in the response to r, or its status.
func (c *httpClient) do(ctx context.Context, r httpRequest) view {
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return view{Outcome: err.Error()}
	}
	for name, value := range map[string]string{"Content-Type": r.contentType, "Accept": r.accept} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if c.http == nil {
		c.http, c.shut = c.open()
	}
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return failed(ctx, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return failed(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return view{Outcome: resp.Status}
	}
	v := parseView(body, 0)
	v.Header = headerOf(resp, body)
	return v
}

// headerOf returns the fields of the header of resp that tell a client something else than body does. The freshness
// lifetime is the least of the TTLs and of a denial's MINIMUM (RFC 8484, 5.1), at most an hour, and five seconds where there is none.
func headerOf(resp *http.Response, body []byte) (fields string) {
	fresh := uint32(5)
	m := new(dns.Msg)
	if m.Unpack(body) == nil {
		for i, rr := range slices.Concat(m.Answer, m.Ns, slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })) {
			ttl := rr.Header().Ttl
			if soa, ok := rr.(*dns.SOA); ok && i >= len(m.Answer) {
				ttl = min(ttl, soa.Minttl)
			}
			if fresh = min(fresh, ttl); i == 0 {
				fresh = min(ttl, 3600)
			}
		}
	}
	for _, f := range [][2]string{{"Content-Type", "application/dns-message"}, {"Cache-Control", fmt.Sprintf("max-age=%d", fresh)}, {"Content-Length", fmt.Sprint(len(body))}} {
		if value := resp.Header.Get(f[0]); value != f[1] {
			fields += fmt.Sprintf("%s: %s, not %s; ", f[0], value, f[1])
		}
	}
	return fields
}

func (c *httpClient) close() {
	if c.http != nil {
		c.shut()
	}
	c.http = nil
}

// grpcClient calls CoreDNS's gRPC service.
type grpcClient struct {
	t    *testing.T
	at   netip.AddrPort
	cfg  *tls.Config
	conn *grpcpeer.Client
}

func (c *grpcClient) ask(ctx context.Context, packet []byte) view {
	return c.call(ctx, grpcpeer.Method, packet)
}

// call returns the message in the response to a call, or its status.
func (c *grpcClient) call(ctx context.Context, method string, packet []byte) view {
	if c.conn == nil {
		c.conn = grpcpeer.Dial(c.t, c.at, c.cfg)
	}
	msg, err := c.conn.Call(ctx, method, packet)
	if err != nil {
		return view{Outcome: "status " + status.Code(err).String()}
	}
	return parseView(msg, 0)
}

func (c *grpcClient) close() {
	if c.conn != nil {
		c.conn.Close()
	}
	c.conn = nil
}

// quicClient asks over QUIC (RFC 9250).
type quicClient struct {
	at   netip.AddrPort
	cfg  *tls.Config
	conn *quic.Conn
}

func (c *quicClient) ask(ctx context.Context, packet []byte) view {
	return c.send(ctx, append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...), true)
}

// send returns the message in the stream of which frame is the client's side, and whether that ends.
func (c *quicClient) send(ctx context.Context, frame []byte, end bool) view {
	reply, err := c.exchange(ctx, frame, end)
	if err != nil {
		c.close()
		return failed(ctx, err)
	}
	if len(reply) < 2 || int(binary.BigEndian.Uint16(reply)) != len(reply)-2 {
		return view{Outcome: fmt.Sprintf("a stream of %d bytes", len(reply))}
	}
	return parseView(reply[2:], 0)
}

func (c *quicClient) exchange(ctx context.Context, frame []byte, end bool) ([]byte, error) {
	var err error
	if c.conn == nil {
		if c.conn, err = quic.DialAddr(ctx, c.at.String(), c.cfg, nil); err != nil {
			c.conn = nil
			return nil, err
		}
	}
	stream, err := c.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = stream.SetDeadline(deadline)
	if _, err := stream.Write(frame); err != nil {
		return nil, err
	}
	if end {
		_ = stream.Close()
	}
	return io.ReadAll(stream)
}

func (c *quicClient) close() {
	if c.conn != nil {
		_ = c.conn.CloseWithError(0, "")
	}
	c.conn = nil
}

// wait returns how long to wait for a reply to q.
func (q query) wait() time.Duration {
	if q.dropped {
		return shortWait
	}
	return longWait
}
