package scenario

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// server is an upstream that runs. Its methods are safe for concurrent use.
type server struct {
	script *Upstream
	addr   netip.AddrPort
	tls    *tls.Config // nil for plain DNS
	// fill puts addresses in the place of placeholders.
	fill  func(string) (string, error)
	ctx   context.Context
	tasks sync.WaitGroup
	tcp   net.Listener
	// release is closed when nothing is held any more.
	release  chan struct{}
	released sync.Once
	udp      *net.UDPConn // nil but for plain DNS

	mu      sync.Mutex
	silent  bool
	ended   bool // nothing may be started any more
	seen    []seen
	hits    map[*rule]int
	fault   error // what should not have come
	sockets []io.Closer
	conns   map[net.Conn]bool
}

// seen is a query that came.
type seen struct {
	name  string
	qtype uint16
	over  string
}

// newServer makes the server of u and has it listen at an address of ip; serve begins to
// answer, until ctx ends, and stop ends it.
func (st *stage) newServer(ctx context.Context, u *Upstream, ip netip.Addr) (*server, error) {
	s := &server{
		script: u, addr: netip.AddrPortFrom(ip, u.port), ctx: ctx, fill: st.replace,
		release: make(chan struct{}), hits: make(map[*rule]int), conns: make(map[net.Conn]bool),
	}
	if u.tls || u.https {
		cert, err := newCertificate(st.ca, u.cert, ip)
		if err != nil {
			return nil, err
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"dot"}}
		if u.https {
			s.tls.NextProtos = []string{"h2", "http/1.1"}
		}
	}
	return s, s.listen()
}

// listen makes the sockets. The port stays the one of the first time.
func (s *server) listen() error {
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		return fmt.Errorf("upstream %s: %w", s.script.Name, err)
	}
	s.addr = netip.AddrPortFrom(s.addr.Addr(), uint16(ln.Addr().(*net.TCPAddr).Port))
	var udp *net.UDPConn
	if s.tls == nil {
		if udp, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(s.addr)); err != nil {
			ln.Close()
			return fmt.Errorf("upstream %s: %w", s.script.Name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tcp, s.udp, s.sockets = ln, udp, []io.Closer{ln}
	if udp != nil {
		s.sockets = append(s.sockets, udp)
	}
	return nil
}

// serve begins to answer at the sockets.
func (s *server) serve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ln, udp := s.tcp, s.udp
	switch {
	case s.script.https:
		s.serveHTTPS(ln)
	case s.tls != nil:
		s.tasks.Go(func() { s.accept(tls.NewListener(ln, s.tls), "tls") })
	default:
		s.tasks.Go(func() { s.readUDP(udp) })
		s.tasks.Go(func() { s.accept(ln, "tcp") })
	}
}

// shut closes the sockets and all connections.
func (s *server) shut() {
	s.mu.Lock()
	for _, c := range s.sockets {
		c.Close()
	}
	s.sockets = nil
	s.mu.Unlock()
	s.hangUp()
}

// hangUp closes the connections there are.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// launch runs f unless s has ended.
func (s *server) launch(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.tasks.Go(f)
	}
}

// stop is shut for ever; it waits until nothing of s runs.
func (s *server) stop() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.shut()
	s.letGo()
	s.tasks.Wait()
}

// letGo releases what is held; nothing is held from here on.
func (s *server) letGo() { s.released.Do(func() { close(s.release) }) }

func (s *server) setSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

// count is how many queries came that f holds.
func (s *server) count(f func(seen) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.seen {
		if f(q) {
			n++
		}
	}
	return n
}

// connected is how many connections there are.
func (s *server) connected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// way is how an answer goes back; a nil function is for what the transport can't do.
type way struct {
	over string
	send func(msg []byte) error
	// reset and cut end the connection: at once, or after n bytes of the frame of msg.
	reset func()
	cut   func(msg []byte, n int)
}

// take notes a query and starts the answer.
func (s *server) take(packet []byte, w way) {
	q := new(dns.Msg)
	if err := q.Unpack(packet); err != nil || len(q.Question) != 1 || q.Response {
		s.mu.Lock()
		s.fault = fmt.Errorf("upstream %s got what is no query: %x", s.script.Name, packet)
		s.mu.Unlock()
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, seen{strings.ToLower(q.Question[0].Name), q.Question[0].Qtype, w.over})
	n, silent := len(s.seen), s.silent
	r := s.choose(q, w.over)
	s.mu.Unlock()
	if silent || r == nil {
		return
	}
	s.launch(func() {
		if err := s.act(r, q, n, w); err != nil && s.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			s.mu.Lock()
			s.fault = fmt.Errorf("upstream %s, line %d: %w", s.script.Name, r.line, err)
			s.mu.Unlock()
		}
	})
}

// choose finds the rule for q and uses it up once; s is locked.
func (s *server) choose(q *dns.Msg, over string) *rule {
	for _, r := range s.script.rules {
		if r.matches(q, over) && (r.times == 0 || s.hits[r] < r.times) {
			s.hits[r]++
			return r
		}
	}
	return nil
}

// act does what r says about q.
func (s *server) act(r *rule, q *dns.Msg, n int, w way) error {
	if !s.pause(r) {
		return nil
	}
	for _, kind := range r.strays {
		b, err := stray(kind, q)
		if err != nil {
			return err
		}
		_ = w.send(b)
	}
	if r.silent {
		return nil
	}
	msg, err := r.message(q, n, s.fill)
	switch {
	case err != nil:
		return err
	case r.reset && w.reset != nil:
		w.reset()
	case r.closes && w.cut != nil:
		w.cut(msg, r.sent)
	default:
		_ = w.send(msg) // to a client that has gone, perhaps
	}
	return nil
}

// pause waits as r says; false if the scenario ends.
func (s *server) pause(r *rule) bool {
	if r.held {
		select {
		case <-s.release:
		case <-s.ctx.Done():
			return false
		}
	}
	if r.delay > 0 {
		t := time.NewTimer(r.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}

func (s *server) readUDP(c *net.UDPConn) {
	buf := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		s.take(buf[:n], way{over: "udp", send: func(msg []byte) error {
			_, err := c.WriteToUDPAddrPort(msg, from)
			return err
		}})
	}
}

func (s *server) accept(ln net.Listener, over string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		open := s.sockets != nil && !s.ended
		s.conns[c] = true
		s.mu.Unlock()
		if !open {
			c.Close()
		}
		s.launch(func() { s.serveConn(c, over) })
	}
}

// serveConn reads the queries of one connection.
func (s *server) serveConn(c net.Conn, over string) {
	defer func() {
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	var writing sync.Mutex
	frame := func(msg []byte, n int) error {
		writing.Lock()
		defer writing.Unlock()
		b := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
		_, err := c.Write(b[:min(n, len(b))])
		return err
	}
	w := way{
		over: over,
		send: func(msg []byte) error { return frame(msg, len(msg)+2) },
		reset: func() {
			raw := c
			if t, ok := c.(*tls.Conn); ok {
				raw = t.NetConn()
			}
			_ = raw.(*net.TCPConn).SetLinger(0)
			raw.Close()
		},
		cut: func(msg []byte, n int) {
			if n > 0 {
				_ = frame(msg, n)
			}
			c.Close()
		},
	}
	var length [2]byte
	for {
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		packet := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, packet); err != nil {
			return
		}
		s.take(packet, w)
	}
}

// dohPath is where servers over HTTPS take queries.
const dohPath = "/dns-query"

// serveHTTPS is RFC 8484, both methods; s is locked.
func (s *server) serveHTTPS(ln net.Listener) {
	h := &http.Server{
		TLSConfig: s.tls, ReadHeaderTimeout: maxDuration, ErrorLog: quiet(),
		Handler: http.HandlerFunc(s.answerHTTPS),
		ConnState: func(c net.Conn, state http.ConnState) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch state {
			case http.StateNew:
				s.conns[c] = true
			case http.StateClosed, http.StateHijacked:
				delete(s.conns, c)
			}
		},
	}
	s.sockets = append(s.sockets, h)
	s.tasks.Go(func() { _ = h.ServeTLS(ln, "", "") })
}

func (s *server) answerHTTPS(rw http.ResponseWriter, r *http.Request) {
	packet, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	if r.Method == http.MethodPost {
		packet, err = io.ReadAll(io.LimitReader(r.Body, dns.MaxMsgSize))
	}
	if err != nil || r.URL.Path != dohPath {
		http.Error(rw, "no query", http.StatusBadRequest)
		return
	}
	answered := make(chan []byte, 2)
	s.take(packet, way{
		over:  "https",
		send:  func(msg []byte) error { answered <- msg; return nil },
		reset: func() { answered <- nil },
		cut:   func(msg []byte, n int) { answered <- msg[:min(n, len(msg))] },
	})
	select {
	case msg := <-answered:
		if msg == nil {
			panic(http.ErrAbortHandler)
		}
		rw.Header().Set("Content-Type", "application/dns-message")
		_, _ = rw.Write(msg)
	case <-r.Context().Done():
	case <-s.ctx.Done():
	}
}
