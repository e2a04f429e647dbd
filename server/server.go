// Package server is where a packet comes in and its reply goes out.
//
// Each listening address has as many UDP sockets as there are cores, which share
// the port (reuseport.go says who gets what), and one TCP listener. A reader takes
// the packets that wait on its socket, up to a batch, reads each in place, and walks
// the query path (resolve.go): what the node's own sources or the cache can answer is
// written to the reader's reply buffers and sent before it looks again, with nothing
// allocated and nobody woken. Only what has to wait for an upstream is copied and
// handed to a goroutine of the crew; [Limits.Waiting] bounds how many wait, and how many
// of them one client may have (waiting.go). The newest beyond that are answered SERVFAIL
// at once, and counted, while hits go on as before.
//
// Where an address's [Config] says so, clients come over TLS (tls.go) or HTTPS (https.go)
// instead: to the same TCP listener, under the same limits, without UDP.
//
// Who owns what: a reader's packet and reply buffers are its own and are used
// again for the next batch; a waiting query owns a copy of both until its reply is
// sent. Routes are immutable and are swapped whole.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// Limits bound what clients can make the server hold. Zero fields are defaults.
type Limits struct {
	// Waiting is the number of queries that wait for upstreams at once, over all
	// addresses. The default, 4096, is 800 queries/s that all time out after five
	// seconds; each holds about 16 KiB. They are divided among the clients as package
	// share says; a client is one IP address.
	Waiting int
	// Conns is the number of TCP connections at once per address, 1024 by default:
	// as many sockets again as Waiting may take would run into the usual limit on
	// open files.
	Conns int
	// ClientConns is the number of those that one client, which is one IP address,
	// may have. By default an eighth of Conns: with less than eight clients that
	// go wrong there is room for the rest, and one with a connection for each of a
	// hundred threads is still served. IPv6 addresses are not taken together by
	// their first 64 bits, because all pods of a node have the same.
	ClientConns int
	// IdleTimeout is how long a TCP connection may be silent between two queries, 10
	// seconds by default: long enough for a resolver that reuses its connection,
	// short enough that 1024 connections turn over (RFC 7766, 6.2.3). It may take a
	// tenth longer.
	IdleTimeout time.Duration
	// ReadTimeout is how long a client may take over TCP for the rest of a query once
	// its first byte has come, however many bytes come at a time: 3 seconds by
	// default, which is a lost segment sent twice again.
	ReadTimeout time.Duration
	// WriteTimeout is how long a client may take over TCP to take what has been written
	// at once: 5 seconds by default, after which it has asked again.
	WriteTimeout time.Duration
	// Pipelined is the number of queries of one TCP connection that wait for
	// upstreams at once (RFC 7766, 6.2.1.1); the connection is not read from
	// while it is reached. 64 by default: a stub resolver has two in flight.
	Pipelined int
	// Readers is the number of UDP sockets of an address, each with a reader of its
	// own; as many as the process may use cores by default.
	Readers int
	// Poller makes readers wait by way of Go's poller instead of in the kernel.
	Poller bool
	noMmsg bool // of tests: readers do without recvmmsg
}

// Server answers on any number of addresses. Its methods are safe for concurrent
// use but for [Server.Listen] and [Server.Shutdown], which one goroutine calls, and
// [Server.Suspend] and [Server.Resume], which another one may.
type Server struct {
	log    *slog.Logger
	limits Limits

	mu        sync.Mutex // guards listeners, httpStatuses and inherited
	listeners map[netip.AddrPort]*listener
	// httpStatuses outlives the listener of an address.
	httpStatuses map[netip.AddrPort]*httpStatuses
	inherited    inheritedSockets
	suspended    atomic.Pointer[drain] // nil while s reads

	waiting *share.Limiter // of queries that wait, and of what is done for none
	running sync.WaitGroup // readers, connections and waiting queries
	workers *workerPool    // what UDP queries wait in
	copies  *copier        // nil: no answers inside of the kernel
	stop    context.CancelFunc
	ctx     context.Context
	own     context.Context // ctx for what no client waits for

	panics                atomic.Uint64
	shed                  [shedReasons]atomic.Uint64
	refused, evicted, cut atomic.Uint64
	handshakesFailed      atomic.Uint64
	unsent                atomic.Int64 // bytes of replies over TCP that clients don't take
	delays                *stat.Histogram
}

// New makes a server that listens nowhere yet.
func New(log *slog.Logger, limits Limits) *Server {
	limits.Waiting = orDefault(limits.Waiting, 4096)
	limits.Conns = orDefault(limits.Conns, 1024)
	limits.ClientConns = orDefault(limits.ClientConns, max(1, limits.Conns/8))
	limits.IdleTimeout = orDefault(limits.IdleTimeout, 10*time.Second)
	limits.ReadTimeout = orDefault(limits.ReadTimeout, 3*time.Second)
	limits.WriteTimeout = orDefault(limits.WriteTimeout, 5*time.Second)
	limits.Pipelined = orDefault(limits.Pipelined, 64)
	limits.Readers = orDefault(limits.Readers, cores())
	s := &Server{
		log:          log,
		limits:       limits,
		listeners:    make(map[netip.AddrPort]*listener),
		httpStatuses: make(map[netip.AddrPort]*httpStatuses),
		waiting:      share.NewLimiter(limits.Waiting),
		workers:      newWorkerPool(maxIdleWorkers),
		delays:       stat.NewHistogram(delayBuckets),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.own = context.WithValue(s.ctx, ownKey{}, true)
	return s
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// listener is one address: its sockets and what it serves.
type listener struct {
	addr     netip.AddrPort
	config   atomic.Pointer[ListenerConfig]
	udp      []udpSocket // none but for plain DNS
	tcp      *tcpListener
	https    *httpsServer // of DNS over HTTPS, else nil
	active   atomic.Int32 // readers, and who accepts
	progress []progress   // of the readers
}

// Listen makes the server listen on exactly the addresses in configs. It binds new
// addresses first: on an error nothing has changed and no new socket is held. An
// address that stays keeps its sockets and gets its new configuration between two
// queries. All other sockets are closed, including those of an address whose
// transport changes. Between [Server.Suspend] and [Server.Resume] Listen returns an
// error.
func (s *Server) Listen(configs map[netip.AddrPort]ListenerConfig) error {
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
	s.closeDoors()
	for addr, l := range s.listeners {
		if _, stays := configs[addr]; !stays || fresh[addr] != nil {
			s.stopListener(l)
			delete(s.listeners, addr)
		}
	}
	for addr, cfg := range configs {
		if l := s.listeners[addr]; l != nil {
			l.config.Store(&cfg)
		}
	}
	for addr, l := range fresh {
		s.listeners[addr] = l
		s.startListener(l)
	}
	s.openDoors()
	return nil
}

// bindNew opens the sockets of every address that has no listener, or one that does
// not accept its new configuration. On an error no new socket is held.
func (s *Server) bindNew(configs map[netip.AddrPort]ListenerConfig) (map[netip.AddrPort]*listener, error) {
	fresh := make(map[netip.AddrPort]*listener)
	for addr, cfg := range configs {
		if l := s.listeners[addr]; l != nil && l.accepts(&cfg) {
			continue
		}
		l, err := s.bindListener(addr, &cfg)
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

// bindListener opens every socket of addr, or none.
func (s *Server) bindListener(addr netip.AddrPort, cfg *ListenerConfig) (*listener, error) {
	l := &listener{addr: addr}
	l.config.Store(cfg)
	var err error
	if cfg.Transport == config.PlainDNS {
		if l.udp, err = openUDPSockets(addr, s.limits, s.inherited); err != nil {
			return nil, fmt.Errorf("listening on udp %s: %w", addr, err)
		}
		l.progress = make([]progress, len(l.udp))
	}
	if l.tcp, err = listenTCP(addr, s.limits, s.inherited); err != nil {
		l.close()
		return nil, fmt.Errorf("listening on tcp %s: %w", addr, err)
	}
	if cfg.Transport == config.DNSOverHTTPS {
		l.https = s.newHTTPSServer(l)
	}
	return l, nil
}

func (s *Server) startListener(l *listener) {
	if !s.limits.Poller {
		addProcs(len(l.udp))
	}
	var readers sync.WaitGroup
	l.active.Add(int32(len(l.udp)) + 1)
	for lane, p := range l.udp {
		readers.Add(1)
		s.running.Go(func() {
			defer readers.Done()
			defer l.active.Add(-1)
			s.readUDP(l, p, lane)
		})
	}
	s.running.Go(func() {
		readers.Wait()
		if !s.limits.Poller {
			addProcs(-len(l.udp))
		}
	})
	s.running.Go(func() {
		defer l.active.Add(-1)
		s.acceptConns(l)
	})
	if l.https != nil {
		s.running.Go(l.https.serve)
	}
}

// stopListener closes a listener that was started. Queries under way go on. While s is away
// nobody reads, the hall has been left, and the UDP sockets stay for the replies of
// those that wait: one that is opened for such a reply could be dealt packets of the
// other process.
func (s *Server) stopListener(l *listener) {
	if s.suspended.Load() != nil {
		l.tcp.close()
		return
	}
	l.close()
	if l.https != nil {
		s.running.Go(l.https.shutdown)
	}
}

// close stops listening and reading.
func (l *listener) close() {
	closeAll(l.udp)
	if l.tcp != nil {
		l.tcp.close()
	}
}

// Shutdown stops reading, lets the queries under way finish until ctx ends, then
// drops them, with an error. No socket is held when it returns. Another process that
// has the same sockets goes on reading from them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closeDoors()
	s.inherited.close()
	s.inherited = nil
	left := slices.Collect(maps.Values(s.listeners))
	clear(s.listeners)
	for _, l := range left {
		s.stopListener(l)
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
		err = errors.New("queries still waiting for upstreams were dropped at the end of the grace period")
	}
	s.stop()
	<-finished // whatever waits, waits for s.ctx too
	s.workers.running.Wait()
	for _, l := range left {
		closeAll(l.udp)
	}
	return err
}

// Panics counts queries that panicked and were answered SERVFAIL.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// ConnsRefused counts TCP connections closed because [Limits.Conns] or
// [Limits.ClientConns] was reached, and all of those had queries waiting.
func (s *Server) ConnsRefused() uint64 { return s.refused.Load() }

// ConnsEvicted counts idle TCP connections closed to make room for new ones.
func (s *Server) ConnsEvicted() uint64 { return s.evicted.Load() }

// ConnsCut counts TCP connections closed because the client took too long to send
// a query or to take its replies.
func (s *Server) ConnsCut() uint64 { return s.cut.Load() }

// HandshakesFailed counts TLS handshakes that clients broke off, took too long for, or
// came to no terms in.
func (s *Server) HandshakesFailed() uint64 { return s.handshakesFailed.Load() }

// serve runs the query path on what x.query.Packet holds. The reply is written to buf. msg is
// what to send, nil for nothing. With any outcome but [answered] there is none yet: the
// request has to wait, see [request.detach] and [Server.wait].
func (s *Server) serve(rt *Routes, x *request, buf []byte, limit func(*wire.Query) int) (msg []byte, o outcome) {
	defer func() {
		if p := recover(); p != nil {
			msg, o = s.panicked(x, buf, p), answered
		}
	}()
	x.latency, x.hops, x.direct = 0, 0, true
	switch x.query.Parse(x.query.Packet) {
	case wire.Drop:
		x.result = result{}
		return nil, answered
	case wire.Malformed:
		x.result = result{}
		return wire.AppendError(buf[:0], x.query.Packet, wire.FormErr), answered
	case wire.Unsupported:
		x.result = result{}
		return wire.AppendError(buf[:0], x.query.Packet, wire.NotImp), answered
	case wire.Serve:
	}
	x.advertised = x.query.UDPSize
	x.begin(rt, x.arrival, buf)
	if o = rt.resolve(x); o != answered {
		return nil, o
	}
	return s.finish(x, limit(&x.query)), answered
}

// finish completes the reply to x and counts the query.
func (s *Server) finish(x *request, limit int) []byte {
	if x.err != nil && errors.Is(x.err, upstream.ErrBusy) {
		s.shed[shedUpstream].Add(1)
	}
	return x.zone.finish(x, limit)
}

// wait completes a request that may wait, after its run has ended in o. The upstreams bound
// the time: they give up after five seconds.
func (s *Server) wait(rt *Routes, x *request, o outcome, buf []byte, limit int) (msg []byte) {
	defer func() {
		if p := recover(); p != nil {
			msg = s.panicked(x, nil, p)
		}
	}()
	if o == wouldWait {
		x.begin(rt, clock.Now(), buf)
		o = rt.resolve(x)
	}
	x.finishForward(o)
	return s.finish(x, limit)
}

// panicked turns a panic of one query into a SERVFAIL. The packet is one the
// header of which was read.
func (s *Server) panicked(x *request, buf []byte, p any) []byte {
	s.panics.Add(1)
	s.log.Error("a query panicked", "panic", p, "stack", string(debug.Stack()))
	if len(x.query.Packet) < wire.HeaderLen {
		return nil
	}
	return wire.AppendError(buf[:0], x.query.Packet, wire.ServFail)
}
