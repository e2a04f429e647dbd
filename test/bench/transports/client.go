package transports

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/internal/wire"
)

// client is a connection to a server that has one query at a time in flight.
type client interface {
	// ask returns the reply to the packed query, whose ID is 0.
	ask(ctx context.Context, query []byte) ([]byte, error)
	close()
}

// transport is a way to ask.
type transport struct {
	// scheme is that of the zone in a Corefile.
	scheme string
	dial   func(ctx context.Context, from *origin, at netip.AddrPort, roots *tls.Config) (client, error)
}

// origin is where connections come from.
type origin struct {
	addr netip.Addr
	// udp is the socket of all QUIC connections; nil: each has one of its own.
	udp *quic.Transport
	// dials counts connections.
	dials atomic.Int64
}

// newOrigin returns an origin whose QUIC connections share a socket.
func newOrigin(addr netip.Addr) (*origin, error) {
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return nil, err
	}
	return &origin{addr: addr, udp: &quic.Transport{Conn: socket}}, nil
}

func (o *origin) close() {
	_ = o.udp.Close()
	_ = o.udp.Conn.Close()
}

// dialTCP opens a TCP connection.
func (o *origin) dialTCP(ctx context.Context, network, at string) (net.Conn, error) {
	o.dials.Add(1)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.addr, 0))}
	return d.DialContext(ctx, network, at)
}

// dialQUIC opens a QUIC connection.
func (o *origin) dialQUIC(ctx context.Context, at string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
	o.dials.Add(1)
	if o.udp == nil {
		return quic.DialAddr(ctx, at, t, q)
	}
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, err
	}
	t = t.Clone()
	t.ServerName = addr.Addr().String()
	return o.udp.Dial(ctx, net.UDPAddrFromAddrPort(addr), t, &quic.Config{MaxIdleTimeout: holdIdle})
}

// list has the transports in the order of the table.
var list = []transport{
	{"tls", dialTLS},
	{"https", dialHTTPS},
	{"grpc", dialGRPC},
	{"quic", dialQUIC},
	{"https3", dialHTTP3},
}

// streamClient asks over TLS (RFC 7858).
type streamClient struct{ conn *tls.Conn }

func dialTLS(ctx context.Context, from *origin, at netip.AddrPort, roots *tls.Config) (client, error) {
	conn, err := from.dialTCP(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	roots = roots.Clone()
	roots.ServerName = at.Addr().String()
	secure := tls.Client(conn, roots)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return streamClient{secure}, nil
}

func (c streamClient) ask(_ context.Context, query []byte) ([]byte, error) {
	return askFramed(c.conn, query)
}

func (c streamClient) close() { _ = c.conn.Close() }

// askFramed writes a query and reads the reply, each behind its length (RFC 1035, 4.2.2).
func askFramed(stream io.ReadWriter, query []byte) ([]byte, error) {
	if _, err := stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(stream, length[:]); err != nil {
		return nil, err
	}
	reply := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(stream, reply)
	return reply, err
}

// httpClient asks by POST requests: over HTTP/2 or HTTP/3 (RFC 8484), or over CoreDNS's gRPC service.
type httpClient struct {
	http *http.Client
	url  string
	grpc bool
	shut func()
}

func dialHTTPS(_ context.Context, from *origin, at netip.AddrPort, roots *tls.Config) (client, error) {
	return overHTTP2(from, at, "/dns-query", roots), nil
}

func dialGRPC(_ context.Context, from *origin, at netip.AddrPort, roots *tls.Config) (client, error) {
	c := overHTTP2(from, at, "/coredns.dns.DnsService/Query", roots)
	c.grpc = true
	return c, nil
}

// overHTTP2 returns a client with a connection of its own.
func overHTTP2(from *origin, at netip.AddrPort, path string, roots *tls.Config) *httpClient {
	t := &http.Transport{TLSClientConfig: roots.Clone(), DialContext: from.dialTCP, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP2(true)
	return &httpClient{http: &http.Client{Transport: t}, url: "https://" + at.String() + path, shut: t.CloseIdleConnections}
}

func dialHTTP3(_ context.Context, from *origin, at netip.AddrPort, roots *tls.Config) (client, error) {
	t := &http3.Transport{TLSClientConfig: roots.Clone(), Dial: from.dialQUIC}
	return &httpClient{http: &http.Client{Transport: t}, url: "https://" + at.String() + "/dns-query", shut: func() { _ = t.Close() }}, nil
}

func (c *httpClient) ask(ctx context.Context, query []byte) ([]byte, error) {
	kind := "application/dns-message"
	if c.grpc {
		kind, query = "application/grpc", grpcframe.Append(nil, query)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(query))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	if c.grpc {
		req.Header.Set("TE", "trailers")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	reply, err := io.ReadAll(io.LimitReader(resp.Body, 2*wire.MaxMessage))
	if err != nil || !c.grpc {
		return reply, err
	}
	return grpcframe.Parse(reply)
}

func (c *httpClient) close() { c.shut() }

// quicClient asks over QUIC, each query in a stream of its own (RFC 9250).
type quicClient struct{ conn *quic.Conn }

func dialQUIC(ctx context.Context, from *origin, at netip.AddrPort, roots *tls.Config) (client, error) {
	roots = roots.Clone()
	roots.NextProtos = []string{"doq"}
	conn, err := from.dialQUIC(ctx, at.String(), roots, nil)
	if err != nil {
		return nil, err
	}
	return quicClient{conn}, nil
}

func (c quicClient) ask(ctx context.Context, query []byte) ([]byte, error) {
	stream, err := c.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return askFramed(closingStream{stream}, query)
}

func (c quicClient) close() { _ = c.conn.CloseWithError(0, "") }

// closingStream ends the client's side of a stream behind what is written to it.
type closingStream struct{ *quic.Stream }

func (s closingStream) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	return n, errors.Join(err, s.Close())
}
