package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// transport is a way to ask an agent over connections.
type transport struct {
	name string
	port func(ports) uint16
	tls  bool
	http bool
}

var transports = []transport{
	{name: "TCP", port: func(p ports) uint16 { return p.dns }},
	{name: "TLS", port: func(p ports) uint16 { return p.tls }, tls: true},
	{name: "HTTPS", port: func(p ports) uint16 { return p.https }, tls: true, http: true},
}

// client connects to agents over one transport.
type client struct {
	transport
	roots  *tls.Config
	agent  *agent
	random *rand.Rand
	asked  []question
}

func (c *client) addr() string {
	return netip.AddrPortFrom(c.agent.addrs()[0], c.port(c.agent.ports)).String()
}

// connections runs, beside each other, clients of each transport that ask and wait for the
// answer, and clients that vanish without reading it. Clients that stall in the middle of a
// query or a handshake go on after that, until the agent has enough of them.
func (r *run) connections(ctx context.Context, a *agent) (sum tally) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, t := range transports {
		for i := range r.plan.clients {
			// Each goroutine has its own generator.
			newClient := func(role uint64) *client {
				return &client{t, r.roots, a, rand.New(rand.NewPCG(r.plan.seed, uint64(r.round)<<32|uint64(i)<<8|role)), r.outside}
			}
			wg.Go(func() {
				t := newClient(0).ask(ctx)
				mu.Lock()
				defer mu.Unlock()
				sum.add(t)
			})
			wg.Go(func() { newClient(1).vanish(ctx) })
			r.stalled.Go(func() { newClient(2).stall(ctx) })
		}
	}
	wg.Wait()
	return sum
}

// dial opens a connection, with the handshake if the transport has one.
func (c *client) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", c.addr())
	if err != nil || !c.tls {
		return raw, err
	}
	conn := tls.Client(raw, c.roots)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// queriesPerConn is the number of queries on a connection that is used as it should be.
const queriesPerConn = 5

// shortestLimit is the shortest time after which an agent may end a connection: it waits this
// long for a handshake or the rest of a query. On a busy machine a client may be too slow for
// that; it asks again on another connection.
const shortestLimit = 3 * time.Second

// ask asks several questions on one connection, or several if the agent had to end one.
func (c *client) ask(ctx context.Context) (t tally) {
	asker := c.newAsker()
	defer asker.close()
	for range queriesPerConn {
		q := c.asked[c.random.IntN(len(c.asked))]
		for {
			began := time.Now()
			m, err := asker.exchange(ctx, q)
			if err != nil && time.Since(began) >= shortestLimit && ctx.Err() == nil {
				t.again++
				asker.close()
				continue
			}
			t.count(q, m)
			break
		}
	}
	return t
}

// asker asks on a connection that it opens when there is none. exchange returns a nil message
// with an error.
type asker interface {
	exchange(ctx context.Context, q question) (*dns.Msg, error)
	close()
}

func (c *client) newAsker() asker {
	if c.http {
		return &httpsAsker{c, &http.Client{Timeout: replyTimeout, Transport: &http.Transport{TLSClientConfig: c.roots.Clone(), ForceAttemptHTTP2: true}}}
	}
	return &streamAsker{client: c}
}

// streamAsker asks over TCP or TLS.
type streamAsker struct {
	*client
	conn net.Conn // nil: none
}

func (c *streamAsker) exchange(ctx context.Context, q question) (m *dns.Msg, err error) {
	if c.conn == nil {
		if c.conn, err = c.dial(ctx); err != nil {
			return nil, err
		}
	}
	_ = c.conn.SetDeadline(time.Now().Add(replyTimeout))
	over := dns.Conn{Conn: c.conn}
	if err := over.WriteMsg(new(dns.Msg).SetQuestion(q.name, dns.TypeA)); err != nil {
		return nil, err
	}
	return over.ReadMsg()
}

func (c *streamAsker) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// httpsAsker asks over HTTPS.
type httpsAsker struct {
	*client
	web *http.Client
}

func (c *httpsAsker) close() { c.web.CloseIdleConnections() }

func (c *httpsAsker) exchange(ctx context.Context, q question) (*dns.Msg, error) {
	packed, err := new(dns.Msg).SetQuestion(q.name, dns.TypeA).Pack()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.addr()+fakedns.Path, bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/dns-message")
	resp, err := c.web.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(body); err != nil {
		return nil, err
	}
	return m, nil
}

// stall sends part of a query, or of a handshake, and waits until the agent closes the
// connection.
func (c *client) stall(ctx context.Context) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.addr())
	if err != nil {
		return // clients that ask notice, too
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	part := []byte{0, 40, 1, 2, 3} // of a frame of 40 bytes
	if c.tls {
		part = []byte{22, 3, 1, 0, 200, 1, 0} // of a ClientHello of 200 bytes
	}
	_, _ = conn.Write(part)
	_, _ = io.Copy(io.Discard, conn)
}

// vanish sends a query and resets the connection without reading.
func (c *client) vanish(ctx context.Context) {
	conn, err := c.dial(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	packed, err := new(dns.Msg).SetQuestion(c.asked[c.random.IntN(len(c.asked))].name, dns.TypeA).Pack()
	if err != nil {
		return
	}
	_, _ = conn.Write(fakedns.Frame(packed)) // over HTTPS it is garbage
	raw := conn
	if t, ok := conn.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	raw.Close()
}
