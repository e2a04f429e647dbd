package endpoint

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/connlimit"
)

// The most connections of one HTTP endpoint at once. An idle one takes about 20 KiB, and
// one that has sent as much of a header as it may takes 45 KiB: all 80 are 3.6 MB at
// worst. Those beyond a limit are closed, not queued.
const (
	// httpClientConns is for one address. Prometheus needs one, and two while it reloads;
	// behind a node's masquerade several servers share an address.
	httpClientConns = 8
	// httpTotalConns is for all clients that are not on this node: eight of them with all they
	// may have.
	httpTotalConns = 64
	// httpNodeConns is for the node itself, on top of the others: the kubelet's probes,
	// the agent's own, and collectors on the node's network.
	httpNodeConns = 16
	// maxLingering bounds the connections that are closed lingerTime after they have lost their place, because their
	// request waits for its turn. A client that opens another one as soon as one is closed would otherwise
	// do so without end.
	maxLingering = 32
	lingerTime   = time.Second
)

// httpConns are the open connections of one HTTP endpoint. Those from the node's own
// addresses have places that nobody else can take, and a new one always gets in: the
// kubelet restarts an agent that does not answer its probes. It is safe for concurrent
// use.
type httpConns struct {
	local  func(netip.Addr) bool // whether an address is the node's own; nil: none is
	counts *httpCounts
	rates  httpRates // of their requests
	// lingering is the number of connections that have lost their place and are not closed yet.
	lingering atomic.Int32

	mu           sync.Mutex
	node, others connlimit.Set[*httpConn]
}

// httpCounts are numbers of connections that were closed, by the limit that was met.
type httpCounts struct {
	evicted, refused [connlimit.Limits]atomic.Uint64
}

// Evicted returns the number of idle connections that were closed to make room, and Refused that of new ones, by the limit that was
// met: client or listener.
func (e *Servers) Evicted() map[string]uint64 { return byLimit(&e.counts.evicted) }
func (e *Servers) Refused() map[string]uint64 { return byLimit(&e.counts.refused) }

// Failures returns the number of attempts to listen that the kernel refused.
func (e *Servers) Failures() uint64 { return e.failures.Load() }

func byLimit(counts *[connlimit.Limits]atomic.Uint64) map[string]uint64 {
	return map[string]uint64{"client": counts[connlimit.Client].Load(), "listener": counts[connlimit.Total].Load()}
}

func newHTTPConns(local func(netip.Addr) bool, counts *httpCounts) *httpConns {
	return &httpConns{
		local: local, counts: counts,
		node:   connlimit.Set[*httpConn]{Total: httpNodeConns, PerClient: httpClientConns, Fair: true, Force: true},
		others: connlimit.Set[*httpConn]{Total: httpTotalConns, PerClient: httpClientConns, Fair: true},
	}
}

// admit takes conn in, or closes it and returns nil. To make room it closes another
// connection, and for clients on other machines never one on which a request is being
// answered. A client that has all it may have loses the one of its own that has been idle for longest. It is not turned
// away, because those it holds may be dead, or another's behind the same address: with
// 8 connections anybody behind the masquerade of Prometheus' node could keep it out.
// An idle connection that is closed costs a scraper a new handshake and no scrape.
func (h *httpConns) admit(conn *net.TCPConn) *httpConn {
	c := &httpConn{TCPConn: conn, owner: h}
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.client = a.AddrPort().Addr().Unmap()
	}
	c.lastActivity.Store(int64(clock.Now()))
	c.set = &h.others
	if h.local != nil && h.local(c.client) {
		c.set = &h.node
	}
	h.mu.Lock()
	victim, evict, met, ok := c.set.Add(c)
	h.mu.Unlock()
	if evict {
		h.counts.evicted[met].Add(1)
		h.end(victim)
	}
	if !ok {
		h.counts.refused[met].Add(1)
		_ = conn.Close()
		return nil
	}
	return c
}

// end closes c, which has lost its place, at once or soon.
func (h *httpConns) end(c *httpConn) {
	if !c.waiting.Load() {
		_ = c.Close()
		return
	}
	c.lingers.Store(true)
	if h.lingering.Add(1) > maxLingering {
		_ = c.Close()
		return
	}
	time.AfterFunc(lingerTime, func() { _ = c.Close() })
}

// listener accepts connections of ln that have a place in h.
func (h *httpConns) listener(ln *net.TCPListener) net.Listener {
	return &limitedListener{TCPListener: ln, conns: h}
}

// handler tells h's connections of the requests that next answers, each in its client's turn. Probes from the node
// itself don't wait: whatever else at the kubelet's address sends requests in a loop must not make it restart the
// agent. The server's ConnContext must be connContext.
func (h *httpConns) handler(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(httpConnKey{}).(*httpConn); ok {
			// While it waits the connection is idle: others may take its place.
			if (c.set != &h.node || !isProbe(r.URL.Path)) && !c.awaitTurn(r.Context()) {
				return // the client has gone
			}
			c.begin()
			defer c.end()
		}
		next(w, r)
	})
}

// isProbe reports whether the kubelet probes that path.
func isProbe(path string) bool { return path == "/health" || path == "/ready" }

// httpConnKey is under which the context of a request has its *httpConn.
type httpConnKey struct{}

func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, httpConnKey{}, c)
}

// limitedListener is a listener that closes connections for which there is no place.
type limitedListener struct {
	*net.TCPListener
	conns *httpConns
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if c := l.conns.admit(conn); c != nil {
			return c, nil
		}
	}
}

// httpConn is one connection to an HTTP endpoint.
type httpConn struct {
	*net.TCPConn
	owner  *httpConns
	set    *connlimit.Set[*httpConn] // one of in's
	client netip.Addr
	// lastActivity is when the last request began or ended, or else the connection came, by
	// package clock. Bytes that are no request yet don't move it.
	lastActivity atomic.Int64
	requests     atomic.Int32 // being answered
	waiting      atomic.Bool  // a request waits for its turn
	lingers      atomic.Bool  // it counts in owner.lingering
}

func (c *httpConn) ClientAddr() netip.Addr { return c.client }

func (c *httpConn) Activity() (last time.Duration, busy bool) {
	return time.Duration(c.lastActivity.Load()), c.requests.Load() > 0
}

// awaitTurn waits for the turn of a request. It returns false if ctx ends first.
func (c *httpConn) awaitTurn(ctx context.Context) bool {
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	return c.owner.rates.wait(ctx, c.client)
}

func (c *httpConn) begin() {
	c.requests.Add(1)
	c.lastActivity.Store(int64(clock.Now()))
}

func (c *httpConn) end() {
	c.lastActivity.Store(int64(clock.Now()))
	c.requests.Add(-1)
}

// Close closes the connection and gives its place back. It may be called again, and while
// the connection is in use.
func (c *httpConn) Close() error {
	if c.lingers.Swap(false) {
		c.owner.lingering.Add(-1)
	}
	c.owner.mu.Lock()
	c.set.Remove(c)
	c.owner.mu.Unlock()
	return c.TCPConn.Close()
}
