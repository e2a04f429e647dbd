package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
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
	// Conns is how many TCP connections one address may have, 1024 by default. More would
	// reach the usual limit on open files. When there are as many, the client with the most
	// loses the one that has been idle longest.
	Conns int
	// ClientConns is how many of them one client may have, by default an eighth of Conns.
	// PodRanges says what a client is.
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
	Client *resolver.ClientLimit
	noMmsg bool // set by tests: readers do not use recvmmsg
}

// Server answers queries at any number of addresses. Its methods are safe for concurrent
// use, except that [Server.Listen] and [Server.Shutdown] must be called by one goroutine,
// and [Server.Suspend] and [Server.Resume] by one other at most.
type Server struct {
	log    *slog.Logger
	limits Limits

	mu        sync.Mutex // guards listeners, httpStatuses and inherited
	listeners map[ListenAddr]*listener
	// httpStatuses outlives the listener of an address.
	httpStatuses map[ListenAddr]*httpStatuses
	doqCodes     map[ListenAddr]*doqCodes // the same; nil without DNS over QUIC
	inherited    inheritedSockets
	suspended    atomic.Pointer[drain] // nil unless s is suspended

	waiting     *share.Limiter // places of waiting queries and of background work
	running     sync.WaitGroup // counts readers, connections and waiting queries
	turns       *workerTurns   // of the queries for workers
	workers     *workerPool    // in which UDP queries wait that need a goroutine
	largeTurns  *share.Turns   // for making large answers
	tcpTurns    *share.Turns   // for reading from TCP connections
	tcpClients  *share.Limiter // gives the clients of tcpTurns their numbers
	largeRoom   *share.Room    // for large replies to clients with a stream
	fastPath    *fastPath      // nil without answers in the kernel
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
		listeners:    make(map[ListenAddr]*listener),
		httpStatuses: make(map[ListenAddr]*httpStatuses),
		waiting:      share.NewLimiter(limits.Waiting),
		turns:        newWorkerTurns(turnsPerCore * cores()),
		workers:      newWorkerPool(maxIdleWorkers),
		largeTurns:   share.NewTurns(cores() / 2),
		tcpTurns:     share.NewTurns(cores()),
		tcpClients:   share.NewLimiter(turnPlaces),
		largeRoom:    share.NewRoom(maxLargeReplies),
		delays:       stat.NewHistogram(delayBuckets),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
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
	s.disableFastPath()
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
	s.enableFastPath()
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
	s.disableFastPath()
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
		closeAll(l.udp)
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
