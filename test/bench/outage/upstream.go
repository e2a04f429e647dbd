// Package outage is what a server is asked with, and what it asks, while upstreams
// fail: an upstream that falls silent when it is told to, and a client that waits for
// answers longer than any server takes over them.
package outage

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Options say what an upstream is like.
type Options struct {
	// Delay is how long it takes over an answer.
	Delay time.Duration
	// TTL is that of its answers, in seconds.
	TTL uint32
	// TLS, if it is not nil, makes it answer over TLS, and not over UDP and TCP.
	TLS *tls.Config
}

// Upstream answers every question with one address, and negative ones for other
// types than A. Its methods are safe for concurrent use.
type Upstream struct {
	opts    Options
	addr    netip.AddrPort
	servers []*dns.Server
	silent  atomic.Bool
	asked   atomic.Uint64

	mu   sync.Mutex
	open int
	most int
}

// Open starts an upstream on a free port of 127.0.0.1; the caller calls Close.
func Open(o Options) (*Upstream, error) {
	u := &Upstream{opts: o}
	// A port that is free for TCP may be taken for UDP.
	const tries = 3
	var err error
	for range tries {
		if err = u.listen(); err == nil {
			return u, nil
		}
	}
	return nil, fmt.Errorf("starting an upstream: %w", err)
}

func (u *Upstream) listen() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	u.addr = l.Addr().(*net.TCPAddr).AddrPort()
	counted := &counted{Listener: l, u: u}
	if u.opts.TLS != nil {
		u.serve(&dns.Server{Listener: tls.NewListener(counted, u.opts.TLS), Net: "tcp-tls"})
		return nil
	}
	p, err := net.ListenPacket("udp4", u.addr.String())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	u.serve(&dns.Server{Listener: counted}, &dns.Server{PacketConn: p})
	return nil
}

// idle is how long a connection may be silent: longer than any trial, so that the
// clients decide how many there are.
const idle = 10 * time.Minute

func (u *Upstream) serve(servers ...*dns.Server) {
	for _, s := range servers {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		s.Handler, s.IdleTimeout, s.MaxTCPQueries = dns.HandlerFunc(u.answer), func() time.Duration { return idle }, -1
		go func() { _ = s.ActivateAndServe() }()
		<-started
	}
	u.servers = servers
}

// answer answers a question when its time has come. A message that comes while the
// upstream is silent is never answered.
func (u *Upstream) answer(w dns.ResponseWriter, q *dns.Msg) {
	u.asked.Add(1)
	if u.silent.Load() || len(q.Question) != 1 {
		return
	}
	m := u.reply(q)
	// The connection's next question is read meanwhile.
	time.AfterFunc(u.opts.Delay, func() { _ = w.WriteMsg(m) }) // a client that is gone needs no answer
}

func (u *Upstream) reply(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	if o := q.IsEdns0(); o != nil {
		m.SetEdns0(dns.DefaultMsgSize, false)
	}
	head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: u.opts.TTL}
	if q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: head, A: net.IPv4(192, 0, 2, 1).To4()}}
		return m
	}
	head.Name, head.Rrtype = ".", dns.TypeSOA
	m.Ns = []dns.RR{&dns.SOA{Hdr: head, Ns: "ns.", Mbox: "host.", Serial: 1, Refresh: 3600, Retry: 3600, Expire: 3600, Minttl: u.opts.TTL}}
	return m
}

// Addr is where it listens.
func (u *Upstream) Addr() netip.AddrPort { return u.addr }

// Silence makes it answer nothing from here on: its sockets stay open, and what comes
// is read and dropped. Answers under way still come. Speak ends that.
func (u *Upstream) Silence() { u.silent.Store(true) }

// Speak makes it answer again.
func (u *Upstream) Speak() { u.silent.Store(false) }

// Asked is how many questions have come, answered or not.
func (u *Upstream) Asked() uint64 { return u.asked.Load() }

// MostConns is how many connections have been open at once at most.
func (u *Upstream) MostConns() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.most
}

// Close ends it.
func (u *Upstream) Close() {
	for _, s := range u.servers {
		_ = s.Shutdown() // closes the sockets, also of clients that stay
	}
}

// counted counts the connections it accepts.
type counted struct {
	net.Listener
	u *Upstream
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.u.count(1)
	return &countedConn{Conn: conn, gone: sync.OnceFunc(func() { c.u.count(-1) })}, nil
}

func (u *Upstream) count(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open += n
	u.most = max(u.most, u.open)
}

type countedConn struct {
	net.Conn
	gone func()
}

func (c *countedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}
