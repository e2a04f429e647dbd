package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/portholder"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/reply"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
	"github.com/nodens-dns/nodens/upstream"
)

// Limits limit what clients can make the server hold. Zero fields have defaults.
type Limits struct {
	// Waiting is how many queries may wait for upstreams at once, over all addresses. The
	// default, 4096, is 800 queries/s that all time out after five seconds; each holds about
	// 16 KiB. Package share divides them among clients, which PodRanges tells apart. When
	// all places are taken, the client that holds most loses the query that has waited
	// longest, which is answered with an expired answer or SERVFAIL.
	Waiting int
	// Conns is how many TCP connections one address may have, 1024 by default, and at most a
	// quarter of the limit on open files: two addresses leave half of it for upstreams, health
	// checks and metrics. When there are as many, the client with the most
	// loses the one that has been idle longest.
	Conns int
	// ClientConns is how many of them one client may have, by default half, so that the replies that it does not
	// read take half of the memory. PodRanges says what a client is.
	ClientConns int
	// IdleTimeout is how long a TCP connection may be silent between two queries, 10 seconds
	// by default (RFC 7766, 6.2.3). The connection may last a tenth longer.
	IdleTimeout time.Duration
	// ReadTimeout is how long a TCP client may take to send the rest of a query after its
	// first byte, 3 seconds by default. It also limits a TLS handshake.
	ReadTimeout time.Duration
	// WriteTimeout is how long a TCP client may take to accept one write, 5 seconds by
	// default.
	WriteTimeout time.Duration
	// Pipelined is how many queries of one TCP connection may wait for upstreams at once,
	// 64 by default (RFC 7766, 6.2.1.1). The connection is not read from while there are as
	// many, and while its client would only take a place of Waiting from itself.
	Pipelined int
	// Readers is how many UDP sockets an address has, each with its own reader. The default
	// is the number of cores that the process may use.
	Readers int
	// PodRanges says which addresses are one client; nil: no pods are known.
	PodRanges *podrange.Ranges
	// Poller makes readers wait on Go's network poller instead of in the kernel.
	Poller bool
	// Client is the limit of each client's queries, checked before a query is parsed; nil: there is none.
	Client   *resolver.ClientLimit
	oneByOne bool // set by tests, see [udp.Options]
}

// Server answers queries at any number of addresses. Its methods are safe for concurrent
// use, except that [Server.Listen] and [Server.Shutdown] must be called by one goroutine,
// and [Server.Suspend] and [Server.Resume] by one other at most.
type Server struct {
	log    *slog.Logger
	limits Limits

	mu        sync.Mutex // guards listeners, httpStatuses and inherited
	listeners map[ListenAddr]*listener
	// httpStatuses and doqCodes outlive the listener of an address.
	httpStatuses map[ListenAddr]*httpStatuses
	doqCodes     map[ListenAddr]*doqCodes
	inherited    inheritedSockets
	others       portholder.Finder
	suspended    atomic.Pointer[drain] // nil unless s is suspended

	waiting     *share.Limiter // places of waiting queries and of background work
	running     sync.WaitGroup // counts readers, connections and waiting queries
	turns       *workerTurns   // of the queries for workers
	workers     *workerPool    // in which UDP queries wait that need a goroutine
	largeTurns  *share.Turns   // for making large answers
	tcpTurns    *share.Turns   // for reading from TCP connections
	tcpClients  *share.Limiter // gives the clients of tcpTurns their numbers
	largeRoom   *share.Room    // for large replies to clients with a stream
	kernelPath  *kernelPath    // nil without answers in the kernel
	replyCaches *replyCaches   // nil: readers keep no replies
	stop        context.CancelFunc
	ctx         context.Context

	panics                atomic.Uint64
	shed                  [shedReasons]atomic.Uint64
	refused, evicted, cut atomic.Uint64
	handshakesFailed      atomic.Uint64
	unsent                atomic.Int64 // bytes of replies that TCP clients have not accepted
	delays                *stat.Histogram
}

// New returns a server that does not listen yet.
func New(log *slog.Logger, limits Limits) *Server {
	limits.Waiting = orDefault(limits.Waiting, 4096)
	limits.Conns = min(orDefault(limits.Conns, 1024), maxConns())
	limits.ClientConns = orDefault(limits.ClientConns, max(1, limits.Conns/2))
	limits.IdleTimeout = orDefault(limits.IdleTimeout, 10*time.Second)
	limits.ReadTimeout = orDefault(limits.ReadTimeout, 3*time.Second)
	limits.WriteTimeout = orDefault(limits.WriteTimeout, 5*time.Second)
	limits.Pipelined = orDefault(limits.Pipelined, 64)
	limits.Readers = orDefault(limits.Readers, udp.Cores())
	s := &Server{
		log:          log,
		limits:       limits,
		listeners:    make(map[ListenAddr]*listener),
		httpStatuses: make(map[ListenAddr]*httpStatuses),
		doqCodes:     make(map[ListenAddr]*doqCodes),
		waiting:      share.NewLimiter(limits.Waiting),
		turns:        newWorkerTurns(turnsPerCore * udp.Cores()),
		workers:      newWorkerPool(maxIdleWorkers),
		largeTurns:   share.NewTurns(udp.Cores() / 2),
		tcpTurns:     share.NewTurns(udp.Cores()),
		tcpClients:   share.NewLimiter(turnPlaces),
		largeRoom:    share.NewRoom(maxLargeReplies),
		delays:       stat.NewHistogram(udp.DelayBuckets),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// maxConns returns a quarter of the limit on open files, which package os has raised as far as it may.
func maxConns() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return math.MaxInt
	}
	return max(1, int(files.Cur/4))
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// UseKernelPath copies the replies to UDP queries to f, which then answers the same queries in
// the kernel. Call it before any other method.
func (s *Server) UseKernelPath(f KernelPath) {
	s.kernelPath = &kernelPath{log: s.log, program: f}
	s.kernelPath.tables.Cluster, s.kernelPath.tables.Cached = f.Epochs()
	s.kernelPath.fixed = s.kernelPath.tables.Cached.AcquireValue()
	s.kernelPath.fixed.Store(fixedEpoch)
}

// CacheReplies makes each reader of a UDP socket keep the replies that it sends most often, see package
// reply. Call it before any other method, and not with [Server.UseKernelPath]: there the kernel sees the
// hits first, and has to learn answers from all other queries.
func (s *Server) CacheReplies(c ReplyCaches) {
	s.replyCaches = &replyCaches{tables: reply.Tables{Cluster: c.Cluster, Cached: c.Cached}, clock: c.Clock}
}

// Listen makes the server listen on exactly the addresses in configs. It binds new
// addresses first: on an error nothing has changed and no new socket is held. An
// address that stays keeps its sockets and gets its new configuration between two
// queries. All other sockets are closed, including those of an address whose
// transport changes. Between [Server.Suspend] and [Server.Resume] Listen returns an
// error.
func (s *Server) Listen(configs map[ListenAddr]ListenerConfig) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended.Load() != nil {
		return errSuspended
	}
	fresh, err := s.bindNew(configs)
	s.inherited.close()
	s.inherited = nil
	if err != nil {
		return err
	}
	s.kernelPath.disable()
	for addr, l := range s.listeners {
		if _, stays := configs[addr]; !stays || fresh[addr] != nil {
			l.stop()
			delete(s.listeners, addr)
		}
	}
	for addr, cfg := range configs {
		if l := s.listeners[addr]; l != nil {
			l.config.Store(&activeConfig{ListenerConfig: cfg})
		}
	}
	for addr, l := range fresh {
		s.listeners[addr] = l
		l.start()
	}
	s.kernelPath.enable(s.listeners)
	return nil
}

// bindNew opens the sockets of every address that has no listener, or one that does
// not accept its new configuration. On an error no new socket is held.
func (s *Server) bindNew(configs map[ListenAddr]ListenerConfig) (map[ListenAddr]*listener, error) {
	fresh := make(map[ListenAddr]*listener)
	for addr, cfg := range configs {
		if l := s.listeners[addr]; l != nil && l.accepts(&cfg) {
			continue
		}
		l, err := newListener(s, addr, &cfg)
		if err != nil {
			for _, l := range fresh {
				l.close()
			}
			return nil, err
		}
		fresh[addr] = l
	}
	return fresh, nil
}

// Shutdown stops reading, lets pending queries finish until ctx ends, and then drops them
// and returns an error. No socket is held when it returns. Other processes that share the
// sockets go on reading from them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.kernelPath.disable()
	s.inherited.close()
	s.inherited = nil
	left := slices.Collect(maps.Values(s.listeners))
	clear(s.listeners)
	for _, l := range left {
		l.stop()
	}
	s.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		s.running.Wait()
		close(finished)
	}()
	var err error
	select {
	case <-finished:
	case <-ctx.Done():
		err = errors.New("queries that still waited for upstreams were dropped at the end of the grace period")
	}
	s.stop()
	s.waiting.Close()
	select {
	case <-finished: // everything that waits also waits for s.ctx or the context of its place
	case <-time.After(stuckTimeout):
		return errors.New("queries don't end; they and their sockets end with the process")
	}
	s.workers.running.Wait()
	for _, l := range left {
		udp.CloseAll(l.udp)
	}
	return err
}

// stuckTimeout is how long [Server.Shutdown] waits for queries that ignore their context, as those
// that wait for a lock that is never released. An agent that hangs must end, too: another one may
// serve.
const stuckTimeout = time.Second

// serve runs the query path on the packet in r.Query.Packet. The reply is written to buf. msg
// is the message to send, nil for none. With any outcome but [resolver.Answered] there is no
// reply yet: r has to wait, see [Server.wait].
func (s *Server) serve(rt *resolver.Routes, r *resolver.Request, buf []byte) (msg []byte, o resolver.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			msg, o = s.panicked(r, buf, p), resolver.Answered
		}
	}()
	switch r.Parse() {
	case wire.Drop:
		return nil, resolver.Answered
	case wire.Malformed:
		return wire.AppendError(buf[:0], r.Query.Packet, wire.FormErr), resolver.Answered
	case wire.Unsupported:
		return rt.AnswerUnsupported(r, buf[:0]), resolver.Answered
	case wire.Serve:
	}
	r.Begin(rt, r.Arrival, buf)
	if o = rt.Resolve(r); o != resolver.Answered {
		return nil, o
	}
	return s.finish(r), resolver.Answered
}

// serveLarge is [Server.serve] for a query, without permission to wait, whose reply is probably large: it is made in turn, and
// has room until the caller calls [resolver.Request.ReleaseRoom]. x holds p. large is cleared if the reply is small. With any outcome but
// [resolver.Answered] there is neither a reply nor room. err is why there was no turn.
func (s *Server) serveLarge(rt *resolver.Routes, x *resolver.Request, p *share.Place, buf []byte, large *atomic.Bool) (msg []byte, o resolver.Outcome, err error) {
	if err = x.TakeRoom(p); err != nil {
		return nil, o, err
	}
	if err = x.Turns.Take(p, x.Place); err != nil {
		x.ReleaseRoom()
		return nil, o, err
	}
	msg, o = s.serve(rt, x, buf)
	x.Turns.Pass(x.Place)
	if len(msg) <= largeReply {
		large.Store(false)
	}
	if o != resolver.Answered {
		x.ReleaseRoom()
	}
	return msg, o, nil
}

// wait completes r, which may wait, after its run has come to o. A second run writes the
// reply to buf. The upstreams bound the time: they give up after five seconds.
func (s *Server) wait(rt *resolver.Routes, r *resolver.Request, o resolver.Outcome, buf []byte) (msg []byte) {
	defer func() {
		if p := recover(); p != nil {
			msg = s.panicked(r, nil, p)
		}
	}()
	if o == resolver.WouldWait {
		r.Begin(rt, clock.Now(), buf)
		o = rt.Resolve(r)
	}
	if o == resolver.Forward {
		r.Forward()
	}
	return s.finish(r)
}

// finish completes the reply to r and counts the query.
func (s *Server) finish(r *resolver.Request) []byte {
	switch err := r.Err(); {
	case err == nil:
	case errors.Is(err, share.ErrEvicted):
		s.shed[shedClient].Add(1)
		return r.Reject()
	case errors.Is(err, upstream.ErrBusy):
		s.shed[shedUpstream].Add(1)
	}
	return r.Finish()
}

// panicked turns a panic of one query into a SERVFAIL. It returns nil if the packet has no
// complete header.
func (s *Server) panicked(r *resolver.Request, buf []byte, p any) []byte {
	s.panics.Add(1)
	s.log.Error("query panicked", "panic", p, "stack", string(debug.Stack()))
	if len(r.Query.Packet) < wire.HeaderLen {
		return nil
	}
	return wire.AppendError(buf[:0], r.Query.Packet, wire.ServFail)
}

// Reasons for which queries are rejected.
const (
	shedCapacity = iota // no place can be made free
	shedClient          // the client has lost its place to another client
	shedUpstream        // the limit of queries in flight to the upstream server
	shedReasons
)

// overLimit reports whether the query in r, which has not been parsed, is over the limit of its client, and counts it
// then. Client, Arrival and Stripe of r are set.
func (s *Server) overLimit(rt *resolver.Routes, r *resolver.Request) bool {
	l := s.limits.Client
	if l == nil || !l.Covers(r.Proto) || l.Allow(r.Client.Addr(), r.Arrival) {
		return false
	}
	rt.CountOverLimit(r.Stripe, r.Client.Addr())
	return true
}

// acquire makes p the place of r, which has to wait. It returns false if there is none and
// counts that. Every waiting query has its own place, including those that wait for the same
// upstream query.
func (s *Server) acquire(p *share.Place, r *resolver.Request) bool {
	if !s.waiting.Acquire(p, s.limits.PodRanges.Client(r.Client.Addr())) {
		s.shed[shedCapacity].Add(1)
		return false
	}
	r.Place = p.Client()
	return true
}

// background is work that no client waits for.
type background struct {
	place share.Place
	ctx   context.Context // place's, marked as background work
}

// backgrounds holds finished ones for reuse.
var backgrounds = sync.Pool{New: func() any {
	b := new(background)
	b.ctx = resolver.Background(&b.place)
	return b
}}

// Go runs f on its own goroutine: background work that no client waits for. It needs a place
// of [Limits.Waiting] and leaves an eighth of them free; if there is none, it returns false
// and does not run f. f's context ends when a client needs the place, and with the server,
// which waits for f. f must not keep it. A panic in f is counted and logged. Go is safe for
// concurrent use while queries are answered.
func (s *Server) Go(f func(ctx context.Context)) bool {
	b := backgrounds.Get().(*background)
	if !s.waiting.AcquireBackground(&b.place) {
		backgrounds.Put(b)
		return false
	}
	s.workers.running.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				s.panics.Add(1)
				s.log.Error("background query panicked", "panic", p, "stack", string(debug.Stack()))
			}
			s.waiting.Release(&b.place)
			backgrounds.Put(b)
		}()
		f(b.ctx)
	})
	return true
}

// EachShed calls f for each reason for which queries are rejected, with the number of queries
// rejected for it: with SERVFAIL, or with status 503 over HTTPS.
func (s *Server) EachShed(f func(reason string, n uint64)) {
	for i, reason := range [shedReasons]string{"capacity", "client", "upstream"} {
		f(reason, s.shed[i].Load())
	}
}

// NewWatchdog returns a watchdog for s.
func (s *Server) NewWatchdog() *Watchdog { return &Watchdog{server: s} }

// Panics returns the number of queries that panicked. They were answered SERVFAIL.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// ConnsRefused returns the number of TCP connections closed because [Limits.Conns] or
// [Limits.ClientConns] was reached and every other connection had pending queries.
func (s *Server) ConnsRefused() uint64 { return s.refused.Load() }

// ConnsEvicted returns the number of idle TCP connections closed to make room for new ones.
func (s *Server) ConnsEvicted() uint64 { return s.evicted.Load() }

// ConnsCut returns the number of TCP connections closed because the client took too long
// to send a query or to read its replies.
func (s *Server) ConnsCut() uint64 { return s.cut.Load() }

// HandshakesFailed returns the number of failed TLS handshakes, including those that took
// too long.
func (s *Server) HandshakesFailed() uint64 { return s.handshakesFailed.Load() }

// SocketDelay returns how long UDP packets have waited in the sockets before they were
// read, in seconds. It is sampled, at most once per millisecond and reader.
func (s *Server) SocketDelay() stat.Snapshot { return s.delays.Read() }

// countersAt returns the counters of addr in m, which last as long as the server. The caller holds its lock.
func countersAt[T any](m map[ListenAddr]*T, addr ListenAddr) *T {
	c := m[addr]
	if c == nil {
		c = new(T)
		m[addr] = c
	}
	return c
}

// EachHTTPStatus calls f for each HTTP status that the server has replied with at addr,
// with the number of replies. The counts last as long as s.
func (s *Server) EachHTTPStatus(addr ListenAddr, f func(status int, n uint64)) {
	s.mu.Lock()
	c := s.httpStatuses[addr]
	s.mu.Unlock()
	if c == nil {
		return
	}
	for i, status := range countedStatuses {
		if n := c[i].Load(); n > 0 {
			f(status, n)
		}
	}
}

// EachDoQCode calls f for each error code of DNS over QUIC with which the server has ended
// queries or connections at addr, with their number; code 0 is a reply (RFC 9250, 8.4). The counts last
// as long as s.
func (s *Server) EachDoQCode(addr ListenAddr, f func(code int, n uint64)) {
	s.mu.Lock()
	c := s.doqCodes[addr]
	s.mu.Unlock()
	if c == nil {
		return
	}
	for code := range c {
		if n := c[code].Load(); n > 0 {
			f(code, n)
		}
	}
}

// Usage is how much of one limit is in use.
type Usage struct {
	// Used is what is in use, Limit the most that there may be.
	Used, Limit int
	// Addr is the listening address with the highest use if the limit is for each address.
	Addr netip.AddrPort
}

// Usages is how much of the server's limits is in use.
type Usages struct {
	// Waiting are queries that wait for upstreams or a view, Unsent bytes of replies that TCP clients have
	// not accepted.
	Waiting, Unsent Usage
	// Conns are the connections, Requests the requests in flight over HTTPS, of an address.
	Conns, Requests Usage
}

// Usage returns how much of the limits is in use.
func (s *Server) Usage() Usages {
	u := Usages{
		Waiting: Usage{Used: s.waiting.InUse(), Limit: s.limits.Waiting},
		Unsent:  Usage{Used: max(0, int(s.unsent.Load())), Limit: maxUnsent},
		Conns:   Usage{Limit: s.limits.Conns}, Requests: Usage{Limit: s.limits.Waiting},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, l := range s.listeners {
		if l.quic != nil {
			u.Conns.raise(l.quic.connCount(), addr.AddrPort)
			u.Requests.raise(l.quic.requests.InUse(), addr.AddrPort)
			continue
		}
		u.Conns.raise(l.tcp.connCount(), addr.AddrPort)
		if l.https != nil {
			u.Requests.raise(l.https.requests.InUse(), addr.AddrPort)
		}
	}
	return u
}

// WaitingClients returns at most n clients with queries that wait, those with the most first: the order in which
// they lose a place when another client needs it. It is safe for concurrent use.
func (s *Server) WaitingClients(n int) []share.Holder { return s.waiting.Holders(n) }

// raise makes addr the address with the highest use if it uses more than the others.
func (u *Usage) raise(used int, addr netip.AddrPort) {
	if used > u.Used {
		u.Used, u.Addr = used, addr
	}
}
