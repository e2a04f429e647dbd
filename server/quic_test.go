package server

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/ratelimit"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects connections and counters.

// doqClient is a connection over QUIC.
type doqClient struct {
	*quic.Conn
	transport *quic.Transport
	socket    *net.UDPConn
}

// dialDoQ opens a connection from 127.0.0.1 or, with from, another address.
func dialDoQ(t testing.TB, addr netip.AddrPort, cfg *tls.Config, from ...netip.Addr) (*doqClient, error) {
	t.Helper()
	source := loopback
	if len(from) > 0 {
		source = from[0]
	}
	return dialOverQUIC(addr, withALPN(cfg, addr, "doq"), source, &quic.Config{HandshakeIdleTimeout: patience, KeepAlivePeriod: 20 * time.Millisecond})
}

// withALPN returns cfg for the server at addr and the ALPN protocol proto.
func withALPN(cfg *tls.Config, addr netip.AddrPort, proto string) *tls.Config {
	cfg = cfg.Clone()
	cfg.NextProtos, cfg.ServerName = []string{proto}, addr.Addr().String()
	return cfg
}

func dialOverQUIC(addr netip.AddrPort, cfg *tls.Config, source netip.Addr, settings *quic.Config) (*doqClient, error) {
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)))
	if err != nil {
		return nil, err
	}
	c := &doqClient{socket: socket, transport: &quic.Transport{Conn: socket}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.Conn, err = c.transport.Dial(ctx, net.UDPAddrFromAddrPort(addr), cfg, settings); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *doqClient) close() {
	if c.Conn != nil {
		_ = c.CloseWithError(0, "")
	}
	_ = c.transport.Close()
	_ = c.socket.Close()
}

// openDoQ opens a connection that lasts as long as the test.
func openDoQ(t testing.TB, addr netip.AddrPort, cfg *tls.Config, from ...netip.Addr) *doqClient {
	t.Helper()
	c, err := dialDoQ(t, addr, cfg, from...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// ask asks for the A records of name on a stream of its own.
func (c *doqClient) ask(name string) (*dns.Msg, error) {
	q := question(name, dns.TypeA)
	q.Id = 0
	return c.exchange(q)
}

func (c *doqClient) exchange(q *dns.Msg) (*dns.Msg, error) {
	packet, err := q.Pack()
	if err != nil {
		return nil, err
	}
	got, err := c.send(frameOf(packet))
	if err != nil {
		return nil, err
	}
	if len(got) < lengthPrefix || len(got) != lengthPrefix+int(binary.BigEndian.Uint16(got)) {
		return nil, errors.New("the reply is not one message with its length")
	}
	m := new(dns.Msg)
	return m, m.Unpack(got[lengthPrefix:])
}

// send writes data and the end of a stream, and returns what comes back until its end.
func (c *doqClient) send(data []byte) ([]byte, error) {
	str, err := c.OpenStreamSync(context.Background())
	if err != nil {
		return nil, err
	}
	if _, err := str.Write(data); err != nil {
		return nil, err
	}
	if err := str.Close(); err != nil {
		return nil, err
	}
	_ = str.SetReadDeadline(time.Now().Add(patience))
	return io.ReadAll(str)
}

// code waits until the server closes the connection and returns its error code.
func (c *doqClient) code(t testing.TB) quicError {
	t.Helper()
	select {
	case <-c.Context().Done():
	case <-time.After(patience):
		t.Fatal("the connection stays open")
	}
	var closed *quic.ApplicationError
	if err := context.Cause(c.Context()); !errors.As(err, &closed) || !closed.Remote {
		t.Fatalf("the connection ends with %v", err)
	}
	return quicError(closed.ErrorCode)
}

func frameOf(packet []byte) []byte { return appendFrame(nil, packet) }

// packed is q in its wire form, as in a stream, after edit has changed it.
func packed(t testing.TB, edit func(q *dns.Msg)) []byte {
	t.Helper()
	q := question("by.hand.", dns.TypeA)
	q.Id = 0
	edit(q)
	packet, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return frameOf(packet)
}

// http3Client asks over HTTP/3.
type http3Client struct {
	httpsClient
	transport *http3.Transport
}

func newHTTP3(cfg *tls.Config) http3Client {
	tr := &http3.Transport{TLSClientConfig: cfg.Clone(), QUICConfig: &quic.Config{HandshakeIdleTimeout: patience, MaxIdleTimeout: patience}}
	return http3Client{httpsClient{&http.Client{Timeout: patience, Transport: tr}}, tr}
}

func (c http3Client) close() { _ = c.transport.Close() }

var doqConfig = ListenerConfig{Transport: config.DNSOverQUIC}

// quicAt returns the listener over QUIC at addr.
func quicAt(s *Server, addr netip.AddrPort) *quicListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listeners[ListenAddr{AddrPort: addr, QUIC: true}].quic
}

// TestDoQ checks what a well-behaved client sees: replies of any size without truncation, and
// sessions that are resumed without early data.
func TestDoQ(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		for i := range 1000 {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 0, byte(i>>8), byte(i))})
		}
		return m
	})
	s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t, b.Addr()))
	cfg := &tls.Config{RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i := range 3 {
		c := openDoQ(t, addr, cfg)
		m, err := c.ask("by.hand.")
		if err != nil || len(m.Answer) != 1 || m.Id != 0 {
			t.Fatalf("reply %v, error %v", m, err)
		}
		if m, err = c.ask("large.test."); err != nil || len(m.Answer) != 1000 || m.Truncated {
			t.Fatalf("large reply: error %v", err)
		}
		state := c.ConnectionState()
		if state.Used0RTT || state.TLS.DidResume != (i > 0) || state.TLS.NegotiatedProtocol != "doq" {
			t.Errorf("connection %d: early data %t, resumed %t, protocol %q", i, state.Used0RTT, state.TLS.DidResume, state.TLS.NegotiatedProtocol)
		}
		c.close()
	}
	var proto string
	for z := range s.listeners[ListenAddr{AddrPort: addr, QUIC: true}].config.Load().Routes.Zones() {
		z.Stats.EachRequest(func(p, _, _ string, n uint64) { proto += p })
	}
	if proto != "udp" {
		t.Errorf("queries are counted as %q, want udp", proto)
	}
	codes := make(map[int]uint64)
	eventually(t, "six outcomes to be counted", func() bool { // a client may have its reply before it is counted
		clear(codes)
		sum := uint64(0)
		s.EachDoQCode(ListenAddr{AddrPort: addr, QUIC: true}, func(code int, n uint64) { codes[code], sum = n, sum+n })
		return sum == 6
	})
	if len(codes) != 1 {
		t.Errorf("outcomes %v, want 6 replies", codes)
	}
	eventually(t, "the connections to end", func() bool { return quicAt(s, addr).connCount() == 0 })
}

// TestDoQErrors checks the error code with which the connection of a client that breaks the
// protocol is closed (RFC 9250, 4.3.3).
func TestDoQErrors(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	query := packed(t, func(*dns.Msg) {})
	for _, tt := range []struct {
		name string
		data []byte
		want quicError
	}{
		{"message ID", packed(t, func(q *dns.Msg) { q.Id = 1 }), quicProtocolError},
		{"reply", packed(t, func(q *dns.Msg) { q.Response = true }), quicProtocolError},
		{"keepalive", packed(t, func(q *dns.Msg) {
			q.SetEdns0(1232, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
		}), quicProtocolError},
		{"nothing", nil, quicProtocolError},
		{"half a length", query[:1], quicProtocolError},
		{"half a message", query[:len(query)/2], quicProtocolError},
		{"two messages", append(query, query...), quicProtocolError},
		{"no header", []byte{0, 3, 0, 0, 0}, quicProtocolError},
		{"too long", []byte{0xff, 0xff, 0, 0}, quicExcessiveLoad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
			if got, err := c.send(tt.data); err == nil {
				t.Errorf("reply % x", got)
			}
			if got := c.code(t); got != tt.want {
				t.Errorf("code %d, want %d", got, tt.want)
			}
		})
	}
	if _, err := openDoQ(t, addr, &tls.Config{RootCAs: roots}).OpenUniStream(); err == nil {
		t.Error("a unidirectional stream can be opened")
	}
	c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
	if got, err := c.send([]byte{0, 12, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0}); err != nil || len(got) < 6 || got[5]&0xf != dns.RcodeFormatError {
		t.Errorf("a malformed query gets % x, %v; want FORMERR", got, err)
	}
	if _, err := c.ask("by.hand."); err != nil {
		t.Errorf("after it: %v", err)
	}
	if n := s.Panics(); n > 0 {
		t.Errorf("%d panics", n)
	}
}

// TestDoQReset checks that a client may reset a stream before its end, and that the connection
// then goes on.
func TestDoQReset(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
	str, err := c.OpenStreamSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := str.Write([]byte{0, 40, 0, 0}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream to be served", func() bool { return quicAt(s, addr).requests.InUse() == 1 })
	str.CancelWrite(quic.StreamErrorCode(quicRequestCancelled))
	var reset *quic.StreamError
	if _, err := str.Read(make([]byte, 1)); !errors.As(err, &reset) || reset.ErrorCode != quic.StreamErrorCode(quicRequestCancelled) {
		t.Errorf("the stream ends with %v", err)
	}
	if _, err := c.ask("by.hand."); err != nil {
		t.Error(err)
	}
}

// TestDoQSlow checks that a client that doesn't complete its query in time is cut off, whatever
// part of it is missing.
func TestDoQSlow(t *testing.T) {
	limits := patientLimits()
	limits.ReadTimeout = 2 * time.Second // half of it is for a handshake, on a machine that may be busy
	s, addr, roots := startListener(t, limits, doqConfig, byHand(t))
	query := packed(t, func(*dns.Msg) {})
	parts := [][]byte{query[:1], query[:7], query}
	var conns []*doqClient
	for _, part := range parts {
		c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
		conns = append(conns, c)
		str, err := c.OpenStreamSync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := str.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		if got := c.code(t); got != quicProtocolError {
			t.Errorf("code %d", got)
		}
	}
	if n := s.ConnsCut(); n != uint64(len(parts)) {
		t.Errorf("%d connections are counted as cut, want %d", n, len(parts))
	}
}

// TestQUICIdle checks that packets without queries keep no connection open.
func TestQUICIdle(t *testing.T) {
	limits := patientLimits()
	limits.IdleTimeout = 2 * time.Second // a busy machine may send no PING for long
	s, addr, roots := startListener(t, limits, doqConfig, byHand(t))
	c := openDoQ(t, addr, &tls.Config{RootCAs: roots}) // sends a PING every 20 ms
	if _, err := c.ask("by.hand."); err != nil {
		t.Fatal(err)
	}
	if got := c.code(t); got != quicNoError {
		t.Errorf("code %d", got)
	}
	eventually(t, "the connection to be forgotten", func() bool { return quicAt(s, addr).connCount() == 0 })
}

// TestQUICStreams checks that one connection has a bounded number of queries in flight, that the
// address has one, too, and that a client with fewer gets a place.
func TestQUICStreams(t *testing.T) {
	limits := patientLimits()
	limits.Waiting = 8
	s, addr, roots := startListener(t, limits, ListenerConfig{Transport: config.DNSOverQUIC, QUIC: config.QUICLimits{MaxStreams: 12}}, byHand(t))
	c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
	var streams []*quic.Stream
	for range 12 {
		str, err := c.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := str.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, str)
	}
	var over *quic.StreamLimitReachedError
	if _, err := c.OpenStream(); !errors.As(err, &over) {
		t.Errorf("the 13th stream: %v", err)
	}
	var reset *quic.StreamError
	if _, err := streams[0].Read(make([]byte, 1)); !errors.As(err, &reset) || reset.ErrorCode != quic.StreamErrorCode(quicExcessiveLoad) {
		t.Errorf("the oldest stream ends with %v", err)
	}
	if n := quicAt(s, addr).requests.InUse(); n > 8 {
		t.Errorf("%d queries are in flight", n)
	}
	other := openDoQ(t, addr, &tls.Config{RootCAs: roots}, netip.MustParseAddr("127.0.0.2"))
	if _, err := other.ask("by.hand."); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// TestQUICConns checks that the client with most connections loses the one that has been idle
// longest.
func TestQUICConns(t *testing.T) {
	limits := patientLimits()
	limits.Conns, limits.ClientConns = 4, 3
	s, addr, roots := startListener(t, limits, doqConfig, byHand(t))
	cfg := &tls.Config{RootCAs: roots}
	var own []*doqClient
	for range 3 {
		own = append(own, openDoQ(t, addr, cfg))
		eventually(t, "the connection", func() bool { return quicAt(s, addr).connCount() == len(own) })
	}
	openDoQ(t, addr, cfg)
	if got := own[0].code(t); got != quicExcessiveLoad {
		t.Errorf("the client's oldest connection is closed with code %d", got)
	}
	for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
		c := openDoQ(t, addr, cfg, netip.MustParseAddr(from))
		if _, err := c.ask("by.hand."); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	if got := own[1].code(t); got != quicExcessiveLoad {
		t.Errorf("the next one is closed with code %d", got)
	}
	if n := s.ConnsEvicted(); n != 2 {
		t.Errorf("%d connections are counted as evicted", n)
	}
}

// deafSocket is a client's socket that loses all packets from the server.
type deafSocket struct {
	*net.UDPConn
	closed chan struct{}
}

func (s deafSocket) ReadFrom([]byte) (int, net.Addr, error) {
	<-s.closed
	return 0, nil, net.ErrClosed
}

// TestQUICHandshakes checks that handshakes that don't go on are bounded, that clients have to
// prove their addresses meanwhile, and that they can.
func TestQUICHandshakes(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	q := quicAt(s, addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	closed := make(chan struct{})
	defer close(closed)
	cfg := &tls.Config{RootCAs: roots, NextProtos: []string{"doq"}, ServerName: addr.Addr().String()}
	inFlight := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.inFlight
	}
	for i := range 2 * retryHandshakes {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 1, byte(i))})
		if err != nil {
			t.Fatal(err)
		}
		tr := &quic.Transport{Conn: struct{ net.PacketConn }{deafSocket{socket, closed}}}
		t.Cleanup(func() { _ = socket.Close() })
		go func() { _, _ = tr.Dial(ctx, net.UDPAddrFromAddrPort(addr), cfg, nil) }()
	}
	eventually(t, "handshakes to begin", func() bool { return inFlight() == retryHandshakes })
	if _, err := openDoQ(t, addr, &tls.Config{RootCAs: roots}).ask("by.hand."); err != nil {
		t.Errorf("a client that proves its address: %v", err)
	}
	if n := inFlight(); n > retryHandshakes {
		t.Errorf("%d handshakes are in flight", n)
	}
}

// TestQUICHandshakesOfOneClient checks that a client that is alone may make all connections at once but the eighth of
// the handshakes that is left for others.
func TestQUICHandshakesOfOneClient(t *testing.T) {
	s, addr, _ := startListener(t, patientLimits(), doqConfig, byHand(t))
	q := quicAt(s, addr)
	begin := func(ip byte, port int) error {
		_, err := q.beginHandshake(t.Context(), &quic.ClientInfo{RemoteAddr: &net.UDPAddr{IP: net.IPv4(192, 0, 2, ip), Port: port}, AddrVerified: true})
		return err
	}
	n := 1
	for begin(1, n) == nil {
		n++
	}
	if want := maxHandshakes - maxHandshakes/8; n < want {
		t.Errorf("handshake %d of a client is refused, before %d", n, want)
	}
	if err := begin(2, 1); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// TestQUICHandshakeRate checks that a client that makes one connection after the other gets no more than its rate.
func TestQUICHandshakeRate(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	q := quicAt(s, addr)
	exhaust := func(l *ratelimit.Limiter) {
		for later := clock.Now() + time.Hour; l.Allow(loopback, later); {
		}
	}
	exhaust(q.unproven)
	if _, err := openDoQ(t, addr, &tls.Config{RootCAs: roots}).ask("by.hand."); err != nil {
		t.Errorf("a client that has to prove its address: %v", err)
	}
	exhaust(q.proven)
	if _, err := dialDoQ(t, addr, &tls.Config{RootCAs: roots}); err == nil || !strings.Contains(err.Error(), "CONNECTION_REFUSED") {
		t.Errorf("a client over its rate: %v", err)
	}
	if n := s.ConnsRefused(); n == 0 {
		t.Error("the refusal is not counted")
	}
}

// TestQUICSuspend checks that the queries that wait are answered when the sockets go to another
// process and when the server stops, that the connections are closed then, and that clients can
// connect again after Resume.
func TestQUICSuspend(t *testing.T) {
	for _, resume := range []bool{true, false} {
		b, asked, release := holdingBackend(t)
		s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t, b.Addr()))
		cfg := &tls.Config{RootCAs: roots}
		c := openDoQ(t, addr, cfg)
		answered := make(chan error, 1)
		go func() {
			_, err := c.ask("slow.test.")
			answered <- err
		}()
		<-asked
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if resume {
				ended <- s.Suspend(ctx, nil)
				return
			}
			ended <- s.Shutdown(ctx)
		}()
		close(release)
		if err := <-answered; err != nil {
			t.Errorf("the query that waited: %v", err)
		}
		if got := c.code(t); got != quicNoError {
			t.Errorf("code %d", got)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !resume {
			continue
		}
		s.Resume()
		if err := askOnce(t, config.DNSOverQUIC, addr, cfg); err != nil {
			t.Errorf("after Resume: %v", err)
		}
	}
}

// TestQUICTransfer checks that the next process answers on the socket of the previous one, beside
// another transport on the same port.
func TestQUICTransfer(t *testing.T) {
	a, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	at := ListenAddr{AddrPort: addr, QUIC: true}
	cfg := a.listeners[at].config.Load().ListenerConfig
	overTLS := cfg
	overTLS.Transport = config.DNSOverTLS
	both := map[ListenAddr]ListenerConfig{at: cfg, {AddrPort: addr}: overTLS}
	if err := a.Listen(both); err != nil {
		t.Fatal(err)
	}
	files, err := a.SocketFiles()
	if err != nil || len(files) != 2 {
		t.Fatalf("%d sockets, error %v", len(files), err)
	}
	b := New(a.log, patientLimits())
	b.SetInherited(files)
	if err := b.Listen(both); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Shutdown(context.Background()) }()
	if err := a.Suspend(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for _, via := range []config.Transport{config.DNSOverQUIC, config.DNSOverTLS} {
		if err := askOnce(t, via, addr, &tls.Config{RootCAs: roots}); err != nil {
			t.Errorf("%s: %v", via, err)
		}
	}
	if n := quicAt(b, addr).proven; n == nil {
		t.Error("the next process doesn't serve QUIC")
	}
}

// TestQUICPanic checks that a panic outside of the query path resets its stream, is counted, and ends
// neither the connection nor the server.
func TestQUICPanic(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), doqConfig, byHand(t))
	q := quicAt(s, addr)
	setCodes := func(codes *doqCodes) {
		q.requests.mu.Lock() // which each stream holds before it is counted
		defer q.requests.mu.Unlock()
		q.codes = codes
	}
	codes := q.codes
	c := openDoQ(t, addr, &tls.Config{RootCAs: roots})
	setCodes(nil) // counting an outcome panics
	_, _ = c.ask("by.hand.")
	eventually(t, "the panic", func() bool { return s.Panics() == 1 && quicAt(s, addr).requests.Idle() })
	setCodes(codes)
	if _, err := c.ask("by.hand."); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestDoH3 checks HTTP/3 requests by their replies.
func TestDoH3(t *testing.T) {
	s, addr, roots := startListener(t, patientLimits(), ListenerConfig{Transport: config.DNSOverHTTP3}, byHand(t))
	c := newHTTP3(&tls.Config{RootCAs: roots})
	defer c.close()
	m, header, err := c.ask(addr, question("by.hand.", dns.TypeA))
	if err != nil || len(m.Answer) != 1 || header.Get("Cache-Control") != "max-age=3600" {
		t.Errorf("reply %v with %v, error %v", m, header, err)
	}
	for target, want := range map[string]int{"/": 404, dohPath: 400, dohPath + "?dns=AAABAAABAAAAAAAAAmJ5BGhhbmQAAAEAAQ": 200, dohPath + "?dns=AAAA": 400} {
		resp, err := c.Get("https://" + addr.String() + target)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || resp.ProtoMajor != 3 {
			t.Errorf("%s: %s over %s, want %d", target, resp.Status, resp.Proto, want)
		}
	}
	resp, err := c.Post("https://"+addr.String()+dohPath, dnsMessageType, strings.NewReader(strings.Repeat("x", maxStreamQuery+1)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a long query gets %s", resp.Status)
	}
	got := make(map[int]uint64)
	s.EachHTTPStatus(ListenAddr{AddrPort: addr, QUIC: true}, func(status int, n uint64) { got[status] = n })
	if got[200] != 2 || got[404] != 1 || got[400] != 2 || got[413] != 1 {
		t.Errorf("statuses %v", got)
	}
}

// TestDoH3Slow checks that requests that don't end are cut off, and that their number is bounded.
func TestDoH3Slow(t *testing.T) {
	limits := patientLimits()
	limits.ReadTimeout, limits.Waiting = 300*time.Millisecond, 4
	s, addr, roots := startListener(t, limits, ListenerConfig{Transport: config.DNSOverHTTP3}, byHand(t))
	c := newHTTP3(&tls.Config{RootCAs: roots})
	defer c.close()
	body, hold := io.Pipe()
	defer hold.Close()
	failed := make(chan error, 6)
	for range 6 {
		go func() {
			resp, err := c.Post("https://"+addr.String()+dohPath, dnsMessageType, body)
			if err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					err = errors.New("a request without a query is answered")
				} else {
					err = nil
				}
			} else {
				err = nil
			}
			failed <- err
		}()
	}
	for range 6 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n := quicAt(s, addr).requests.InUse(); n > 4 {
		t.Errorf("%d requests are in flight", n)
	}
}
