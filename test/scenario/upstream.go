package scenario

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// server is an upstream with the rules of a scenario. Its methods are safe for concurrent use.
type server struct {
	script *Upstream
	addr   netip.AddrPort
	tls    *tls.Config // nil for plain DNS
	// fill replaces placeholders by addresses.
	fill func(string) (string, error)
	ctx  context.Context
	// dns is replaced when the server starts again. Only the goroutine of the scenario uses it and
	// stopped.
	dns     *fakedns.Server
	stopped bool
	observe func(query, reply *dns.Msg, upstream string) // nil: nobody does
	// release is closed when held replies may go out.
	release  chan struct{}
	released sync.Once

	mu     sync.Mutex
	silent bool
	seen   []fakedns.Record
	hits   map[*rule]int
	fault  error // the first query that is malformed, or reply that can't be made
}

// newServer starts the server of u at an address of ip. It answers until stop.
func (st *run) newServer(ctx context.Context, u *Upstream, ip netip.Addr) (*server, error) {
	s := &server{
		script: u, addr: netip.AddrPortFrom(ip, u.port), ctx: ctx, fill: st.replace,
		release: make(chan struct{}), hits: make(map[*rule]int), observe: st.scenario.Observe,
	}
	if u.tls || u.https || u.quic {
		cert, err := newCertificate(st.ca, u.cert, ip)
		if err != nil {
			return nil, err
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"dot"}}
		if u.https {
			s.tls.NextProtos = []string{"h2", "http/1.1"}
		}
	}
	return s, s.start()
}

// start opens the sockets and answers. The port stays the same after the first start.
func (s *server) start() (err error) {
	s.dns, err = fakedns.Open(s.handle, fakedns.Options{Addr: s.addr, TLS: s.tls, HTTPS: s.script.https, QUIC: s.script.quic, Malformed: s.malformed})
	if err != nil {
		return fmt.Errorf("upstream %s: %w", s.script.Name, err)
	}
	s.addr, s.stopped = s.dns.Addr(), false
	return nil
}

// stop closes the sockets and connections.
func (s *server) stop() {
	s.stopped = true
	if s.dns != nil {
		s.dns.Close()
	}
}

// releaseHeld sends held replies. Later ones are not held.
func (s *server) releaseHeld() { s.released.Do(func() { close(s.release) }) }

func (s *server) setSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

// count returns how many queries match.
func (s *server) count(match func(fakedns.Record) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.seen {
		if match(q) {
			n++
		}
	}
	return n
}

func (s *server) setFault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err
}

func (s *server) malformed(msg []byte) {
	s.setFault(fmt.Errorf("upstream %s got a malformed query: %x", s.script.Name, msg))
}

// handle records a query and starts the reply that its rule describes. The records outlive a
// restart of the server.
func (s *server) handle(q *fakedns.Query) {
	s.mu.Lock()
	s.seen = append(s.seen, fakedns.Record{Name: strings.ToLower(q.Question[0].Name), Type: q.Question[0].Qtype, Transport: q.Transport})
	n, silent := len(s.seen), s.silent
	r := s.choose(q.Msg, q.Transport)
	s.mu.Unlock()
	if s.observe != nil {
		s.observe(q.Msg, nil, s.script.Name)
	}
	if silent || r == nil {
		return
	}
	q.Go(func() {
		if err := s.reply(r, q, n); err != nil && s.ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			s.setFault(fmt.Errorf("upstream %s, line %d: %w", s.script.Name, r.line, err))
		}
	})
}

// choose finds the rule for q and counts its use. The caller holds s.mu.
func (s *server) choose(q *dns.Msg, transport string) *rule {
	for _, r := range s.script.rules {
		if r.matches(q, transport) && (r.times == 0 || s.hits[r] < r.times) {
			s.hits[r]++
			return r
		}
	}
	return nil
}

// reply does what r says about q, the nth query.
func (s *server) reply(r *rule, q *fakedns.Query, n int) error {
	if !s.wait(r, q) {
		return nil
	}
	for _, kind := range r.strays {
		b, err := strayReply(kind, q.Msg)
		if err != nil {
			return err
		}
		q.Send(b)
	}
	if r.silent {
		return nil
	}
	msg, err := r.message(q.Msg, n, s.fill)
	switch udp := q.Transport == fakedns.UDP; {
	case err != nil:
		return err
	case r.reset && !udp:
		q.Reset()
	case r.closes && !udp:
		q.SendPart(msg, r.sent)
	default:
		q.Send(msg)
	}
	return nil
}

// wait waits as long as r says; false if the server stops or the scenario ends first.
func (s *server) wait(r *rule, q *fakedns.Query) bool {
	if r.held {
		select {
		case <-s.release:
		case <-q.Done():
			return false
		case <-s.ctx.Done():
			return false
		}
	}
	if r.delay > 0 {
		t := time.NewTimer(r.delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-q.Done():
			return false
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}
