package fakedns_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

const timeout = time.Minute

func query(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// address answers with one address, and NXDOMAIN for names that begin with nx.
func address(q *dns.Msg) *dns.Msg {
	if strings.HasPrefix(q.Question[0].Name, "nx.") {
		return fakedns.Negative(q, dns.RcodeNameError, 60)
	}
	return fakedns.Address(q, 60, "192.0.2.1", "2001:db8::1")
}

func exchange(t *testing.T, network, addr string, q *dns.Msg, config *tls.Config) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: timeout, TLSConfig: config}
	m, _, err := c.Exchange(q, addr)
	if err != nil {
		t.Fatalf("%s over %s: %v", q.Question[0].Name, network, err)
	}
	return m
}

// TestTransports asks over every transport; the server counts and records the queries.
func TestTransports(t *testing.T) {
	issuer := ca.ForTest(t)
	cert, err := issuer.Server("127.0.0.1")
	check.NoError(t, err)
	trust := &tls.Config{RootCAs: issuer.Pool()}
	plain := fakedns.Start(t, fakedns.Answers(address))
	secure := fakedns.Start(t, fakedns.Answers(address), fakedns.Options{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	for _, tt := range []struct {
		network string
		s       *fakedns.Server
	}{{"udp", plain}, {"tcp", plain}, {"tcp-tls", secure}} {
		if m := exchange(t, tt.network, tt.s.Addr().String(), query("A.test.", dns.TypeAAAA), trust); len(m.Answer) != 1 || m.Answer[0].(*dns.AAAA).AAAA.String() != "2001:db8::1" {
			t.Errorf("%s: %v", tt.network, m)
		}
		if m := exchange(t, tt.network, tt.s.Addr().String(), query("nx.test.", dns.TypeA), trust); m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 {
			t.Errorf("%s: %v", tt.network, m)
		}
	}
	want := []fakedns.Record{
		{Name: "a.test.", Type: dns.TypeAAAA, Transport: fakedns.UDP}, {Name: "nx.test.", Type: dns.TypeA, Transport: fakedns.UDP},
		{Name: "a.test.", Type: dns.TypeAAAA, Transport: fakedns.TCP}, {Name: "nx.test.", Type: dns.TypeA, Transport: fakedns.TCP},
	}
	check.Equal(t, want, plain.Queries(), "queries")
	if plain.Count() != 4 || plain.CountName("NX.test.") != 2 || secure.Count() != 2 || secure.MaxConns() < 1 {
		t.Errorf("counted %d, %d and %d queries, %d connections", plain.Count(), plain.CountName("NX.test."), secure.Count(), secure.MaxConns())
	}
}

func TestHTTPS(t *testing.T) {
	issuer := ca.ForTest(t)
	cert, err := issuer.Server("127.0.0.1")
	check.NoError(t, err)
	s := fakedns.Start(t, func(q *fakedns.Query) {
		if strings.HasPrefix(q.Question[0].Name, "reset.") {
			q.Reset()
			return
		}
		q.Reply(address(q.Msg))
	}, fakedns.Options{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, HTTPS: true})
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: issuer.Pool()}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	post := func(name string) (*dns.Msg, error) {
		b, err := query(name, dns.TypeA).Pack()
		check.NoError(t, err)
		resp, err := client.Post("https://"+s.Addr().String()+fakedns.Path, "application/dns-message", bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if b, err = io.ReadAll(resp.Body); err != nil {
			return nil, err
		}
		m := new(dns.Msg)
		return m, m.Unpack(b)
	}
	if m, err := post("a.test."); err != nil || len(m.Answer) != 1 {
		t.Errorf("%v, %v", m, err)
	}
	if m, err := post("reset.test."); err == nil {
		t.Errorf("a stream that is reset gives %v", m)
	}
	if s.Conns() == 0 || s.CountName("reset.test.") == 0 {
		t.Errorf("%d connections, queries %v", s.Conns(), s.Queries())
	}
}

// TestFaults sends what a resolver must reject, over TCP.
func TestFaults(t *testing.T) {
	s := fakedns.Start(t, func(q *fakedns.Query) {
		good := address(q.Msg)
		packed, err := good.Pack()
		if err != nil {
			t.Error(err)
		}
		switch q.Question[0].Name {
		case "bytes.test.":
			q.Send([]byte{1, 2, 3})
		case "part.test.":
			q.SendPart(packed, 10)
		case "close.test.":
			q.SendPart(packed, 0)
		case "reset.test.":
			q.Reset()
		}
	})
	for _, tt := range []struct {
		name  string
		n     int
		reset bool
	}{{"bytes.test.", 5, false}, {"part.test.", 10, false}, {"close.test.", 0, false}, {"reset.test.", 0, true}} {
		conn, err := net.Dial("tcp", s.Addr().String())
		check.NoError(t, err)
		packed, err := query(tt.name, dns.TypeA).Pack()
		check.NoError(t, err)
		if _, err := conn.Write(fakedns.Frame(packed)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(timeout))
		if tt.name == "bytes.test." {
			_ = conn.(*net.TCPConn).CloseWrite() // the server closes a connection that the client has finished
		}
		got, err := io.ReadAll(conn)
		if len(got) != tt.n || (err != nil) != tt.reset {
			t.Errorf("%s: %d bytes, %v, want %d, reset %v", tt.name, len(got), err, tt.n, tt.reset)
		}
		conn.Close()
	}
}

// TestSilence: a silent server counts queries and does not answer them.
func TestSilence(t *testing.T) {
	s := fakedns.Start(t, fakedns.Answers(address))
	conn, err := dns.DialTimeout("udp", s.Addr().String(), timeout)
	check.NoError(t, err)
	defer conn.Close()
	s.SetSilent(true)
	check.NoError(t, conn.WriteMsg(query("ignored.test.", dns.TypeA)))
	for s.Count() == 0 {
		time.Sleep(time.Millisecond)
	}
	s.SetSilent(false)
	q := query("a.test.", dns.TypeA)
	check.NoError(t, conn.WriteMsg(q))
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	if m, err := conn.ReadMsg(); err != nil || m.Id != q.Id {
		t.Errorf("the first reply is %v, %v", m, err)
	}
}

// TestTruncation: Answers fits replies to the size that the client accepts.
func TestTruncation(t *testing.T) {
	s := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		for range 20 {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: "a.test.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{strings.Repeat("x", 100)}})
		}
		return m
	}))
	for _, tt := range []struct {
		network   string
		edns      uint16
		truncated bool
	}{{"udp", 0, true}, {"udp", 1232, true}, {"udp", 4096, false}, {"tcp", 0, false}} {
		q := query("a.test.", dns.TypeTXT)
		if tt.edns > 0 {
			q.SetEdns0(tt.edns, false)
		}
		if m := exchange(t, tt.network, s.Addr().String(), q, nil); m.Truncated != tt.truncated {
			t.Errorf("%s, %d bytes: truncated %v", tt.network, tt.edns, m.Truncated)
		}
	}
}

// TestClose: Close waits for handlers, ends delayed replies and frees the port.
func TestClose(t *testing.T) {
	asked := make(chan struct{})
	var once sync.Once
	s, err := fakedns.Open(func(q *fakedns.Query) {
		q.ReplyAfter(time.Hour, address(q.Msg))
		once.Do(func() { close(asked) })
	}, fakedns.Options{})
	check.NoError(t, err)
	conn, err := net.Dial("tcp", s.Addr().String())
	check.NoError(t, err)
	defer conn.Close()
	packed, err := query("a.test.", dns.TypeA).Pack()
	check.NoError(t, err)
	if _, err := conn.Write(fakedns.Frame(packed)); err != nil {
		t.Fatal(err)
	}
	<-asked
	s.Close()
	s.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
	again, err := fakedns.Open(fakedns.Answers(address), fakedns.Options{Addr: s.Addr()})
	check.NoError(t, err)
	defer again.Close()
	if again.Addr() != s.Addr() {
		t.Errorf("reopened at %s, want %s", again.Addr(), s.Addr())
	}
}

// TestMalformed: what is not a query with one question reaches Malformed only.
func TestMalformed(t *testing.T) {
	got := make(chan []byte, 1)
	s := fakedns.Start(t, func(*fakedns.Query) { t.Error("the handler gets a malformed query") }, fakedns.Options{
		Addr: netip.MustParseAddrPort("127.0.0.1:0"), Malformed: func(msg []byte) { got <- bytes.Clone(msg) },
	})
	conn, err := net.Dial("udp", s.Addr().String())
	check.NoError(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("no query")); err != nil {
		t.Fatal(err)
	}
	if msg := <-got; string(msg) != "no query" || s.Count() != 0 {
		t.Errorf("%q, %d queries", msg, s.Count())
	}
}

// TestQUIC asks over QUIC: a reply, a stream that is reset, and one that ends within the reply.
func TestQUIC(t *testing.T) {
	issuer := ca.ForTest(t)
	cert, err := issuer.Server("127.0.0.1")
	check.NoError(t, err)
	s := fakedns.Start(t, func(q *fakedns.Query) {
		b, err := address(q.Msg).Pack()
		switch {
		case err != nil:
			t.Error(err)
		case strings.HasPrefix(q.Question[0].Name, "reset."):
			q.Reset()
		case strings.HasPrefix(q.Question[0].Name, "cut."):
			q.SendPart(b, 20)
		default:
			q.Send(b)
		}
	}, fakedns.Options{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, QUIC: true})
	c, err := quic.DialAddr(t.Context(), s.Addr().String(), &tls.Config{RootCAs: issuer.Pool(), NextProtos: []string{"doq"}}, nil)
	check.NoError(t, err)
	defer c.CloseWithError(0, "")
	ask := func(name string) ([]byte, error) {
		b, err := query(name, dns.TypeA).Pack()
		check.NoError(t, err)
		stream, err := c.OpenStream()
		check.NoError(t, err)
		stream.Write(fakedns.Frame(b))
		stream.Close()
		return io.ReadAll(stream)
	}
	m := new(dns.Msg)
	if b, err := ask("a.test."); err != nil || len(b) < 2 || m.Unpack(b[2:]) != nil || len(m.Answer) != 1 {
		t.Errorf("%x, %v", b, err)
	}
	if b, err := ask("cut.test."); err != nil || len(b) != 20 {
		t.Errorf("%d bytes, %v; want 20", len(b), err)
	}
	var reset *quic.StreamError
	if b, err := ask("reset.test."); !errors.As(err, &reset) {
		t.Errorf("%x, %v; want that the stream is reset", b, err)
	}
	if s.Count() != 3 || s.Conns() != 1 || s.Queries()[0].Transport != fakedns.QUIC {
		t.Errorf("%d queries over %s, %d connections", s.Count(), s.Queries()[0].Transport, s.Conns())
	}
}
