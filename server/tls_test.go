// These tests use config, listeners and unsent, which are not exported.

package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects connections and counters.

// askOnce asks for by.hand. once, over a connection of its own.
func askOnce(t testing.TB, via config.Transport, addr netip.AddrPort, cfg *tls.Config) error {
	t.Helper()
	switch {
	case via == config.DNSOverHTTPS:
		return askOnceHTTPS(t, addr, cfg)
	case via == config.DNSOverGRPC:
		c := grpcpeer.Dial(t, addr, cfg)
		defer c.Close()
		m, err := askGRPC(c, question("by.hand.", dns.TypeA))
		if err == nil && len(m.Answer) != 1 {
			err = fmt.Errorf("not the answer: %v", m)
		}
		return err
	case via.OverQUIC():
		return exchangeOnce(t, "by.hand.", via, addr, cfg)
	}
	conn, err := dialTLS(addr, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	return askOver(conn)
}

// askOver asks for by.hand. over conn.
func askOver(conn *dns.Conn) error {
	q := question("by.hand.", dns.TypeA)
	if err := conn.WriteMsg(q); err != nil {
		return err
	}
	m, err := conn.ReadMsg()
	if err == nil && (m.Id != q.Id || len(m.Answer) != 1) {
		err = fmt.Errorf("not the answer: %v", m)
	}
	return err
}

func dialTLS(addr netip.AddrPort, cfg *tls.Config) (*dns.Conn, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", addr.String(), cfg)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &dns.Conn{Conn: conn}, nil
}

// openTLS opens a connection that lasts as long as the test.
func openTLS(t testing.TB, addr netip.AddrPort, roots *x509.CertPool) *dns.Conn {
	t.Helper()
	conn, err := dialTLS(addr, &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

var dotConfig = ListenerConfig{Transport: config.DNSOverTLS}

// TestDoT: every TLS that a client may speak, and whatever protocol it names.
func TestDoT(t *testing.T) {
	s, addr, roots := startListener(t, Limits{}, dotConfig, byHand(t))
	sessions := tls.NewLRUClientSessionCache(1)
	for _, tt := range []struct {
		name     string
		cfg      *tls.Config
		protocol string
		fails    bool
		resumed  bool
	}{
		{name: "1.3", cfg: &tls.Config{MinVersion: tls.VersionTLS13}},
		{name: "1.2", cfg: &tls.Config{MaxVersion: tls.VersionTLS12}},
		{name: "1.1", cfg: &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, fails: true},
		{name: "by name", cfg: &tls.Config{NextProtos: []string{"dot"}}, protocol: "dot"},
		{name: "another name", cfg: &tls.Config{NextProtos: []string{"resolver"}}},
		{name: "first", cfg: &tls.Config{ClientSessionCache: sessions}},
		{name: "again", cfg: &tls.Config{ClientSessionCache: sessions}, resumed: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.RootCAs = roots
			conn, err := dialTLS(addr, tt.cfg)
			if tt.fails {
				if err == nil {
					t.Error("the handshake succeeds")
				}
				eventually(t, "the handshake to be counted", func() bool { return s.HandshakesFailed() == 1 })
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for range 3 {
				if err := askOver(conn); err != nil {
					t.Fatal(err)
				}
			}
			state := conn.Conn.(*tls.Conn).ConnectionState()
			if state.NegotiatedProtocol != tt.protocol || state.DidResume != tt.resumed {
				t.Errorf("protocol %q, resumed %t; want %q, %t", state.NegotiatedProtocol, state.DidResume, tt.protocol, tt.resumed)
			}
		})
	}
}

// TestDoTOrder: queries that come together are answered as they are ready, also when
// they come in pieces, and long replies whole.
func TestDoTOrder(t *testing.T) {
	b, _, release := holdingBackend(t)
	z := byHand(t, b.Addr())
	lines := []string{"192.0.2.9 by.hand"}
	for i := range 4000 {
		lines = append(lines, fmt.Sprintf("10.1.%d.%d many.test", i>>8, i&255))
	}
	z.Hosts = resolvertest.Hosts(t, true, lines...)
	_, addr, roots := startListener(t, Limits{}, dotConfig, z)
	conn := openTLS(t, addr, roots)
	var stream []byte
	names := []string{"slow.test.", "by.hand.", "many.test.", "by.hand."}
	for i, name := range names {
		q := question(name, dns.TypeA)
		q.Id = uint16(i)
		stream = append(stream, frame(t, q)...)
	}
	for len(stream) > 0 { // each piece is a record of its own
		n := min(7, len(stream))
		if _, err := conn.Conn.Write(stream[:n]); err != nil {
			t.Fatal(err)
		}
		stream = stream[n:]
	}
	got := make([]int, len(names))
	read := func() uint16 {
		t.Helper()
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		got[m.Id] = len(m.Answer)
		return m.Id
	}
	for range 3 {
		if id := read(); id == 0 {
			t.Fatal("the query that waits is answered")
		}
	}
	close(release)
	read()
	if want := []int{1, 1, 4000, 1}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("answers %v, want %v", got, want)
	}
}

// TestDoTHandshake: who makes no handshake is let go after a while, counted, and in
// nobody's way; who only looks whether the port is open has done nothing wrong.
func TestDoTHandshake(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS} {
		t.Run(via.String(), func(t *testing.T) {
			s, addr, roots := startListener(t, Limits{ReadTimeout: 50 * time.Millisecond, Conns: 64}, ListenerConfig{Transport: via}, byHand(t))
			for range 3 {
				_ = dial(t, loopback, addr).Close()
			}
			eventually(t, "those that look to be gone", func() bool { return connections(s, addr) == 0 })
			if n := s.HandshakesFailed(); n != 0 {
				t.Errorf("%d handshakes failed", n)
			}
			var silent []*dns.Conn
			for i := range 4 {
				conn := dial(t, loopback, addr)
				if i%2 == 1 { // the beginning of a record
					if _, err := conn.Conn.Write([]byte{22, 3, 1, 1, 0, 1}); err != nil {
						t.Fatal(err)
					}
				}
				silent = append(silent, conn)
			}
			for _, conn := range silent {
				if !isClosed(conn) {
					t.Error("a connection without a handshake does not end")
				}
			}
			eventually(t, "them to be counted", func() bool { return s.HandshakesFailed() == 4 && s.ConnsCut() == 4 })
			plain := dial(t, loopback, addr)
			if isServed(plain) {
				t.Error("a query is answered without TLS")
			}
			eventually(t, "it to be counted", func() bool { return s.HandshakesFailed() == 5 })
			eventually(t, "all to be gone", func() bool { return connections(s, addr) == 0 })
			eventually(t, "a slow machine to make a handshake in time", func() bool {
				return askOnce(t, via, addr, &tls.Config{RootCAs: roots}) == nil
			})
		})
	}
}

// TestDoTIdle: time-outs of the door hold, from the next query on if they change, and
// so does the number of queries.
func TestDoTIdle(t *testing.T) {
	door := dotConfig
	s, addr, roots := startListener(t, Limits{IdleTimeout: time.Hour}, door, byHand(t))
	conn := openTLS(t, addr, roots)
	if err := askOver(conn); err != nil {
		t.Fatal(err)
	}
	door = s.listeners[ListenAddr{AddrPort: addr}].config.Load().ListenerConfig
	door.Timeouts = config.Timeouts{Idle: 50 * time.Millisecond}
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: withRoutes(door, byHand(t))}); err != nil {
		t.Fatal(err)
	}
	next := openTLS(t, addr, roots)
	if !isClosed(next) {
		t.Error("a connection on which nothing happens does not end")
	}
	door.Timeouts = config.Timeouts{MaxTCPQueries: 3}
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: withRoutes(door, byHand(t))}); err != nil {
		t.Fatal(err)
	}
	few := openTLS(t, addr, roots)
	for range 3 {
		if err := askOver(few); err != nil {
			t.Fatal(err)
		}
	}
	if !isClosed(few) {
		t.Error("a connection does not end after its last query")
	}
}

// TestDoTSlowReader: a client that takes no replies is cut off, and costs no more than one
// without TLS.
func TestDoTSlowReader(t *testing.T) {
	s, addr, roots := startListener(t, Limits{WriteTimeout: 50 * time.Millisecond, IdleTimeout: time.Hour}, dotConfig, manyAddressesZone(t), byHand(t))
	conn := openTLS(t, addr, roots)
	q := frame(t, question("many.test.", dns.TypeA))
	for err := error(nil); err == nil; {
		_, err = conn.Conn.Write(q)
	}
	eventually(t, "the client to be cut off", func() bool { return s.ConnsCut() == 1 && connections(s, addr) == 0 })
	if n := s.unsent.Load(); n != 0 {
		t.Errorf("%d bytes are still owed", n)
	}
}

// TestDoTEviction: connections over TLS take the places of the listener as others do.
func TestDoTEviction(t *testing.T) {
	for _, via := range []config.Transport{config.DNSOverTLS, config.DNSOverHTTPS} {
		t.Run(via.String(), func(t *testing.T) {
			s, addr, roots := startListener(t, Limits{Conns: 4, ClientConns: 2, IdleTimeout: time.Hour}, ListenerConfig{Transport: via}, byHand(t))
			conns := make([]*dns.Conn, 3)
			for i := range conns {
				conn, err := dialTLS(addr, &tls.Config{RootCAs: roots})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conns[i] = conn
				// So that the first is the one that is silent for longest.
				eventually(t, "it to come in", func() bool { return connections(s, addr) == min(i+1, 2) })
				if via == config.DNSOverTLS {
					if err := askOver(conn); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !isClosed(conns[0]) {
				t.Error("the first connection of too many does not go")
			}
			eventually(t, "the count", func() bool { return s.ConnsEvicted() == 1 && connections(s, addr) == 2 })
		})
	}
}

// TestDoTGarbage: whatever comes after the handshake, the connection ends, and the
// next one is served.
func TestDoTGarbage(t *testing.T) {
	s, addr, roots := startListener(t, Limits{IdleTimeout: time.Hour}, dotConfig, byHand(t))
	for _, text := range []string{"\x17\x03\x03\x00\x10garbagegarbage!!", "\x17\x03\x03\xff\xff", "GET / HTTP/1.1\r\n\r\n", "\x15\x03\x03\x00\x02\x02\x00"} {
		conn := openTLS(t, addr, roots)
		if err := askOver(conn); err != nil {
			t.Fatal(err)
		}
		raw := conn.Conn.(*tls.Conn).NetConn()
		if _, err := io.WriteString(raw, text); err != nil {
			t.Fatal(err)
		}
		if !isClosed(&dns.Conn{Conn: &drainedConn{raw}}) {
			t.Errorf("%q does not end the connection", text)
		}
	}
	eventually(t, "all to be gone", func() bool { return connections(s, addr) == 0 })
	if err := askOnce(t, config.DNSOverTLS, addr, &tls.Config{RootCAs: roots}); err != nil {
		t.Error(err)
	}
}

// drainedConn is a connection from which only its end is read.
type drainedConn struct{ net.Conn }

func (d *drainedConn) Read([]byte) (int, error) {
	_, err := io.Copy(io.Discard, d.Conn)
	if err == nil {
		err = io.EOF
	}
	return 0, err
}
