// Package fakedns is the scripted DNS server that stands in for upstreams.
//
// A [Server] answers on one port: over UDP and TCP, over TLS, over HTTPS (RFC 8484), or over
// QUIC (RFC 9250). A
// [Handler] gets each query and decides about the reply: it sends a message, any bytes,
// several replies, part of a frame, or nothing; it resets or closes the connection. [Answers]
// makes a Handler from a function that returns a message. The server counts and records the
// queries it gets and the connections to it.
//
// [Start] is for tests; the server ends with the test. [Open] is for programs.
package fakedns

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
)

// The transports of a query.
const (
	UDP   = "udp"
	TCP   = "tcp"
	TLS   = "tls"
	HTTPS = "https"
	QUIC  = "quic"
)

// Options configure a server. The zero value is plain DNS on a free port of 127.0.0.1.
type Options struct {
	// Addr is the address to listen on. The zero value is 127.0.0.1; port 0 is a free port.
	Addr netip.AddrPort
	// TLS makes the server answer over TLS instead of UDP and TCP. nil is plain DNS.
	TLS *tls.Config
	// HTTPS makes a server with TLS answer over HTTP at [Path].
	HTTPS bool
	// QUIC makes a server with TLS answer over QUIC.
	QUIC bool
	// Malformed is called with messages that are not queries with one question, on the
	// goroutine that reads. nil ignores them.
	Malformed func(msg []byte)
}

// maxRecorded bounds the queries that a server records; it counts all of them.
const maxRecorded = 1 << 16

// Record describes a query that the server has got.
type Record struct {
	Name      string // in lower case
	Type      uint16
	Transport string
}

// Server is a scripted DNS server. Its methods are safe for concurrent use.
type Server struct {
	opts    Options
	handler Handler
	addr    netip.AddrPort
	udp     *net.UDPConn // nil with TLS
	tcp     net.Listener // nil with QUIC
	quic    *quic.Transport
	tasks   sync.WaitGroup
	closed  chan struct{}

	quicListener *quic.Listener

	mu       sync.Mutex
	closing  bool
	silent   bool
	count    int
	records  []Record
	conns    map[io.Closer]bool
	maxConns int
	allConns int
}

// Start opens a server that closes when the test ends. Malformed queries fail the test unless
// the options handle them.
func Start(t testing.TB, h Handler, options ...Options) *Server {
	t.Helper()
	o := Options{Malformed: func(msg []byte) { t.Errorf("the upstream got %x, which is not a query", msg) }}
	if len(options) > 0 {
		o = options[0]
	}
	s, err := Open(h, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Open opens a server, whose sockets it makes on the calling thread. The caller calls Close.
func Open(h Handler, o Options) (*Server, error) {
	if !o.Addr.Addr().IsValid() {
		o.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), o.Addr.Port())
	}
	s := &Server{opts: o, handler: h, closed: make(chan struct{}), conns: map[io.Closer]bool{}}
	if err := s.listen(); err != nil {
		return nil, fmt.Errorf("starting a DNS server: %w", err)
	}
	switch {
	case o.QUIC:
		s.tasks.Go(s.acceptQUIC)
	case o.HTTPS:
		s.tasks.Go(s.serveHTTPS)
	case o.TLS != nil:
		s.tasks.Go(func() { s.accept(tls.NewListener(s.tcp, o.TLS), TLS) })
	default:
		s.tasks.Go(s.readUDP)
		s.tasks.Go(func() { s.accept(s.tcp, TCP) })
	}
	return s, nil
}

// listen opens the sockets. A free port for TCP may be taken for UDP, so listen tries several.
func (s *Server) listen() error {
	if s.opts.QUIC {
		return s.listenQUIC()
	}
	const attempts = 20
	var err error
	for range attempts {
		if s.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(s.opts.Addr)); err != nil {
			return err
		}
		s.addr = netip.AddrPortFrom(s.opts.Addr.Addr(), uint16(s.tcp.Addr().(*net.TCPAddr).Port))
		if s.opts.TLS != nil {
			return nil
		}
		if s.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.addr)); err == nil {
			// The kernel limits the buffer to its own maximum.
			_ = s.udp.SetReadBuffer(4 << 20)
			return nil
		}
		s.tcp.Close()
		if s.opts.Addr.Port() != 0 {
			return err
		}
	}
	return err
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// SetSilent makes the server ignore queries, or stop ignoring them. Its sockets stay open and
// it still counts what it gets. Replies that a handler is about to send are sent.
func (s *Server) SetSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

// Count returns the number of queries, answered or not.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Queries returns the first 65,536 queries in order of arrival.
func (s *Server) Queries() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Record(nil), s.records...)
}

// CountName returns how many of [Server.Queries] have the name, in any case.
func (s *Server) CountName(name string) (n int) {
	name = strings.ToLower(name)
	for _, r := range s.Queries() {
		if r.Name == name {
			n++
		}
	}
	return n
}

// Conns returns the number of open connections.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// MaxConns returns the highest number of connections that were open at once.
func (s *Server) MaxConns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxConns
}

// AllConns returns how many connections there were.
func (s *Server) AllConns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allConns
}

// CloseConns closes the open connections.
func (s *Server) CloseConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Close closes the sockets and connections and waits for all handlers to return. Calling it
// again has no effect.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.closed)
	}
	s.mu.Unlock()
	if s.tcp != nil {
		s.tcp.Close()
	}
	if s.udp != nil {
		s.udp.Close()
	}
	s.CloseConns()
	s.closeQUIC()
	s.tasks.Wait()
}

// spawn runs f unless the server is closing.
func (s *Server) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.tasks.Go(f)
	}
	return !s.closing
}

// track counts a new connection; false if the server is closing.
func (s *Server) track(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[c] = true
	s.allConns++
	s.maxConns = max(s.maxConns, len(s.conns))
	return true
}

func (s *Server) untrack(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *Server) readUDP() {
	buf := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := s.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier reply
		}
		s.handle(buf[:n], Query{Transport: UDP, From: from})
	}
}

func (s *Server) accept(l net.Listener, transport string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !s.track(c) || !s.spawn(func() { s.serveConn(c, transport) }) {
			c.Close()
		}
	}
}

func (s *Server) serveConn(c net.Conn, transport string) {
	defer s.untrack(c)
	defer c.Close()
	from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	out := &frameWriter{conn: c}
	for {
		msg, err := ReadFrame(c)
		if err != nil {
			return
		}
		s.handle(msg, Query{Transport: transport, From: from, conn: c, frames: out})
	}
}

// handle counts the query and calls the handler.
func (s *Server) handle(msg []byte, q Query) {
	q.Msg, q.server = new(dns.Msg), s
	if err := q.Unpack(msg); err != nil || q.Response || len(q.Question) != 1 {
		if s.opts.Malformed != nil {
			s.opts.Malformed(msg)
		}
		return
	}
	s.mu.Lock()
	s.count++
	q.Number = s.count
	if len(s.records) < maxRecorded {
		s.records = append(s.records, Record{strings.ToLower(q.Question[0].Name), q.Question[0].Qtype, q.Transport})
	}
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		s.handler(&q)
	}
}

// ReadFrame reads a message with its length in front (RFC 1035, section 4.2.2).
func ReadFrame(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}

// Frame returns msg with its length in front.
func Frame(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg))), msg...)
}
