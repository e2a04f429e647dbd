// These tests count a server's connections, streams and handshakes, which are not exported.

package server

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/test/fakedns"
	"github.com/nodens-dns/nodens/test/resolvertest"
)

const (
	// hostilePlaces is how many streams the attacked server admits.
	hostilePlaces = 16
	// hostileConns is how many connections an attacker opens, each with hostileStreams streams.
	hostileConns, hostileStreams = 4, maxHTTP2Streams
	// hostileGoroutines is how many goroutines an attack may add: those of the places, and of the
	// connections, the library's and the client's.
	hostileGoroutines = hostilePlaces + 16*hostileConns
	// hostileHeap is how many bytes of the heap an attack may occupy, and hostileRest how many may be left.
	hostileHeap, hostileRest = 16 << 20, 1 << 20
)

// hostileTarget is an attacked server. Attackers come from 127.0.0.2.
type hostileTarget struct {
	*Server
	at  ListenAddr
	via config.Transport
	tls *tls.Config

	mu   sync.Mutex
	held []*fakedns.Query // that the upstream has not answered yet
}

// streamAttack is what a hostile client does. run returns when the server has seen it all, or has closed the
// connection. Its connections are closed afterwards.
type streamAttack struct {
	name string
	via  []config.Transport
	run  func(t *testing.T, a *hostileTarget) []io.Closer
	// goroutines is how many of them the attackers themselves have, besides those of hostileConns connections.
	goroutines int
}

var overHTTP2, overQUIC = []config.Transport{config.DNSOverGRPC, config.DNSOverHTTPS}, []config.Transport{config.DNSOverQUIC}

var streamAttacks = []streamAttack{
	{"reset streams", overHTTP2, resetStreams, 0},
	{"streams without an end", overHTTP2, endlessStreams, 0},
	{"closed window", overHTTP2, closedWindow, 0},
	{"huge frame", overHTTP2, hugeFrame, 0},
	{"huge message", overHTTP2, hugeMessage, 0},
	{"endless header", overHTTP2, endlessHeader, 0},
	{"unread acknowledgements", overHTTP2, unreadPings, 0},
	{"unfinished QUIC streams", overQUIC, unfinishedStreams, 0},
	{"unread QUIC replies", overQUIC, unreadReplies, 0},
	{"unfinished handshakes", overQUIC, unfinishedHandshakes, 2 * retryHandshakes * 8},
}

// TestHostileClients checks for each attack that the number of goroutines and the heap stay bounded meanwhile, that
// another client is answered, and that both are where they were when the attacker has left.
func TestHostileClients(t *testing.T) {
	for _, attack := range streamAttacks {
		for _, via := range attack.via {
			t.Run(attack.name+"/"+via.String(), func(t *testing.T) {
				limits := Limits{Waiting: hostilePlaces, ReadTimeout: time.Second, IdleTimeout: time.Second, WriteTimeout: time.Second}
				a := startTarget(t, limits, via)
				a.survive(t, attack, hostileState{math.MaxInt, math.MaxInt64}) // fills pools
				before := a.settle(t)
				a.survive(t, attack, hostileState{before.goroutines + hostileGoroutines + attack.goroutines, before.heap + hostileHeap})
				a.settle(t)
				awaitState(t, "after", hostileState{before.goroutines, before.heap + hostileRest})
				if n := a.Panics(); n > 0 {
					t.Errorf("%d panics", n)
				}
			})
		}
	}
}

func startTarget(t *testing.T, limits Limits, via config.Transport) *hostileTarget {
	t.Helper()
	a := &hostileTarget{via: via}
	b := fakedns.Start(t, func(q *fakedns.Query) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held = append(a.held, q)
	})
	z := byHand(t, b.Addr())
	var lines []string
	for i := range 250 {
		lines = append(lines, "10.0.0."+itoa(i+1)+" many.test")
	}
	z.Hosts = resolvertest.Hosts(t, true, append(lines, "192.0.2.9 by.hand")...)
	s, addr, roots := startListener(t, limits, ListenerConfig{Transport: via}, z)
	a.Server, a.at, a.tls = s, ListenAddr{AddrPort: addr, QUIC: via.OverQUIC()}, &tls.Config{RootCAs: roots}
	return a
}

// release answers the queries that wait for the upstream, and returns true if none is left.
func (a *hostileTarget) release() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.held {
		q.Reply(fakedns.Address(q.Msg, 60, "192.0.2.1"))
	}
	a.held = nil
	return a.Usage().Waiting.Used == 0
}

// hostileState is what an attack may not increase.
type hostileState struct {
	goroutines int
	heap       int64
}

func stateNow() hostileState {
	runtime.GC()
	runtime.GC() // what pools held is free after two
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return hostileState{runtime.NumGoroutine(), int64(m.HeapAlloc + m.StackInuse)}
}

// settle waits until the server has neither connections nor streams.
func (a *hostileTarget) settle(t *testing.T) hostileState {
	t.Helper()
	eventually(t, "the connections to end", func() bool {
		u := a.Usage()
		return u.Conns.Used == 0 && u.Requests.Used == 0 && a.handshakes() == 0
	})
	return stateNow()
}

func (a *hostileTarget) handshakes() int {
	if !a.at.QUIC {
		return 0
	}
	q := quicAt(a.Server, a.at.AddrPort)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inFlight
}

// awaitState waits until there are no more goroutines and bytes than most.
func awaitState(t *testing.T, when string, most hostileState) {
	t.Helper()
	var now hostileState
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s the attack there are %+v, want at most %+v", when, now, most)
		}
	})
	eventually(t, "goroutines and memory "+when+" the attack", func() bool {
		now = stateNow()
		return now.goroutines <= most.goroutines && now.heap <= most.heap
	})
}

// survive runs the attack, asks as another client, and checks the state before the attacker leaves.
func (a *hostileTarget) survive(t *testing.T, attack streamAttack, most hostileState) {
	t.Helper()
	conns := attack.run(t, a)
	if err := askOnce(t, a.via, a.at.AddrPort, a.tls); err != nil {
		t.Errorf("another client: %v", err)
	}
	awaitState(t, "during", most)
	if n := a.Usage().Requests.Used; n > hostilePlaces {
		t.Errorf("%d streams are in flight", n)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, "the queries that wait to end", a.release)
}

// Types and flags of HTTP/2 frames (RFC 9113, 6).
const (
	h2Data, h2Headers, h2Reset, h2Settings, h2Ping, h2Continuation = 0, 1, 3, 4, 6, 9

	h2EndStream, h2EndHeaders, h2Ack = 1, 4, 1
)

// h2Attacker writes HTTP/2 frames of its own.
type h2Attacker struct {
	net.Conn
	t   *testing.T
	a   *hostileTarget
	err error // of the first write that failed
}

// openH2 opens a connection with the client's settings, pairs of two and four bytes.
func (a *hostileTarget) openH2(t *testing.T, settings string) *h2Attacker {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := d.DialContext(t.Context(), "tcp", a.at.String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	cfg := a.tls.Clone()
	cfg.NextProtos, cfg.ServerName = []string{"h2"}, a.at.Addr().String()
	c := &h2Attacker{Conn: tls.Client(conn, cfg), t: t, a: a}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, c.err = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c.frame(h2Settings, 0, 0, settings)
	return c
}

func (c *h2Attacker) frame(kind, flags byte, stream uint32, payload string) {
	if c.err != nil {
		return
	}
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	_, c.err = c.Write(append(binary.BigEndian.AppendUint32(b, stream), payload...))
}

// field is a literal header field without indexing (RFC 7541, 6.2.2).
func field(name, value string) string {
	return "\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value
}

// header is the header of a request for the server's path.
func (c *h2Attacker) header() string {
	path, kind := dohPath, dnsMessageType
	if c.a.via == config.DNSOverGRPC {
		path, kind = grpcframe.Path, grpcframe.ContentType
	}
	return field(":method", "POST") + field(":scheme", "https") + field(":authority", "x") + field(":path", path) + field("content-type", kind)
}

// query is the body of a request for name's A records.
func (c *h2Attacker) query(name string) string {
	packet, err := question(name, dns.TypeA).Pack()
	if err != nil {
		c.t.Fatal(err)
	}
	if c.a.via == config.DNSOverGRPC {
		packet = grpcframe.Append(nil, packet)
	}
	return string(packet)
}

// await reads until the server has processed all frames so far; closed is set if it closes the connection before.
func (c *h2Attacker) await() (closed bool) {
	c.frame(h2Ping, 0, 0, "12345678")
	for c.err == nil {
		var head [9]byte
		if _, c.err = io.ReadFull(c, head[:]); c.err != nil {
			break
		}
		if head[3] == h2Ping && head[4]&h2Ack != 0 {
			return false
		}
		_, c.err = io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
	}
	return true
}

// mustBeClosed fails the test unless the server closes the connection.
func (c *h2Attacker) mustBeClosed() []io.Closer {
	c.t.Helper()
	if c.err == nil {
		_, c.err = io.Copy(io.Discard, c)
	}
	var late net.Error
	if errors.As(c.err, &late) && late.Timeout() {
		c.t.Error("the connection stays open")
	}
	return []io.Closer{c}
}

// resetStreams opens requests that wait, and resets each at once (CVE-2023-44487).
func resetStreams(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	for i := range uint32(20 * hostileStreams) {
		c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
		c.frame(h2Data, h2EndStream, 2*i+1, c.query("held.test."))
		c.frame(h2Reset, 0, 2*i+1, "\x00\x00\x00\x08")
	}
	c.await()
	return []io.Closer{c}
}

// endlessStreams opens more requests than a connection may have, and ends none.
func endlessStreams(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH2(t, "")
		for i := range uint32(2 * hostileStreams) {
			c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
			c.frame(h2Data, 0, 2*i+1, "\x00")
		}
		c.await()
		all = append(all, c)
	}
	return all
}

// closedWindow asks for replies that the client never allows the server to send (RFC 9113, 5.2), and for errors.
func closedWindow(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.openH2(t, "\x00\x04\x00\x00\x00\x00") // SETTINGS_INITIAL_WINDOW_SIZE
		for i := range uint32(hostileStreams) {
			query := c.query("many.test.")
			if i%2 == 0 {
				query = "no query"
			}
			c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
			c.frame(h2Data, h2EndStream, 2*i+1, query)
		}
		if c.await() {
			t.Errorf("the connection is closed: %v", c.err)
		}
		all = append(all, c)
	}
	return all
}

// hugeFrame announces a frame of 16 MiB.
func hugeFrame(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	_, c.err = io.WriteString(c, "\xff\xff\xff\x00\x00\x00\x00\x00\x01")
	return c.mustBeClosed()
}

// hugeMessage announces a message of 4 GiB, and sends as much as it may.
func hugeMessage(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	for i := range uint32(2) {
		c.frame(h2Headers, h2EndHeaders, 2*i+1, c.header())
		c.frame(h2Data, 0, 2*i+1, "\x00\xff\xff\xff\xff"+strings.Repeat("x", http2FrameSize-5))
		for range http2Window/2/http2FrameSize - 1 {
			c.frame(h2Data, 0, 2*i+1, strings.Repeat("x", http2FrameSize))
		}
	}
	c.await()
	return []io.Closer{c}
}

// endlessHeader sends CONTINUATION frames without an end (CVE-2023-45288).
func endlessHeader(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	c.frame(h2Headers, 0, 1, c.header())
	more := strings.Repeat(field("x", strings.Repeat("y", 120)), http2FrameSize/125)
	for range 1000 {
		c.frame(h2Continuation, 0, 1, more)
	}
	return c.mustBeClosed()
}

// unreadPings sends PING frames and doesn't read their acknowledgements, until it can't write any more. The server
// closes the connection. The client may not get to know: its kernel has no room for the end of the connection.
func unreadPings(t *testing.T, a *hostileTarget) []io.Closer {
	c := a.openH2(t, "")
	for c.err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		c.frame(h2Ping, 0, 0, "12345678")
	}
	eventually(t, "the server to close the connection", func() bool { return a.Usage().Conns.Used == 0 })
	return []io.Closer{c}
}

// dialQUIC opens a connection. Unlike [openDoQ] it keeps no reference to it.
func (a *hostileTarget) dialQUIC(t *testing.T) *doqClient {
	t.Helper()
	c, err := dialDoQ(t, a.at.AddrPort, a.tls, netip.MustParseAddr("127.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unfinishedStreams opens all streams of its connections, and sends nothing but their first byte (CVE-2025-47950).
func unfinishedStreams(t *testing.T, a *hostileTarget) (all []io.Closer) {
	for range hostileConns {
		c := a.dialQUIC(t)
		for range maxQUICStreams {
			str, err := c.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = str.Write([]byte{0}) // fails once the connection is closed
		}
		all = append(all, closerFunc(c.close))
	}
	eventually(t, "the places to be taken", func() bool { return a.Usage().Requests.Used == hostilePlaces })
	return all
}

// unreadReplies asks on all streams of its connections for replies that it doesn't read.
func unreadReplies(t *testing.T, a *hostileTarget) (all []io.Closer) {
	query := packed(t, func(q *dns.Msg) { q.Question[0].Name = "many.test." })
	for range hostileConns {
		c := a.dialQUIC(t)
		for range maxQUICStreams {
			str, err := c.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = str.Write(query)
			_ = str.Close()
		}
		all = append(all, closerFunc(c.close))
	}
	return all
}

// unfinishedHandshakes begins handshakes from spoofed addresses: it never reads what the server sends.
func unfinishedHandshakes(t *testing.T, a *hostileTarget) (all []io.Closer) {
	cfg := a.tls.Clone()
	cfg.NextProtos, cfg.ServerName = []string{"doq"}, a.at.Addr().String()
	for i := range 2 * retryHandshakes {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 2, byte(i+1))})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		tr := &quic.Transport{Conn: struct{ net.PacketConn }{deafSocket{socket, closed}}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = tr.Dial(t.Context(), net.UDPAddrFromAddrPort(a.at.AddrPort), cfg, &quic.Config{HandshakeIdleTimeout: 100 * time.Millisecond})
		}()
		all = append(all, closerFunc(func() {
			<-ended
			close(closed)
			_ = tr.Close()
			_ = socket.Close()
		}))
	}
	if n := a.handshakes(); n > retryHandshakes {
		t.Errorf("%d handshakes are in flight, want at most %d", n, retryHandshakes)
	}
	return all
}

// closerFunc closes by a call.
type closerFunc func()

func (f closerFunc) Close() error {
	f()
	return nil
}
