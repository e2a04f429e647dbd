// Package upstream forwards queries to other DNS servers.
//
// [Pool.ExchangeFrom] orders the servers by the policy and asks the first that is not down
// (see [exchange]). If that server fails, the next one is asked, for at most two rounds and
// never beyond the deadline. If no server can be reached, further rounds follow until the read timeout,
// so that a restart loses no query (see [absence]). If its reply takes longer than its 95th percentile, the next
// server is asked as well, and the first good reply wins; a [hedgeBudget] of 5 % bounds
// these extra queries. A server that leaves three queries in a row unanswered becomes
// suspect within tens of milliseconds ([passiveHealth]): other servers are asked first, and
// the queries it already has are hedged at once. Copies of client queries, called shadow
// queries, find out when it has recovered.
//
// A [transport] asks one server over UDP, TCP, TLS, HTTPS or QUIC. A truncated UDP reply is
// fetched again over TCP. A server that rejects EDNS is asked again without it. The first
// failure of a server starts health probes, which repeat at the health interval until one
// is answered. Only failed probes count towards max_fails, so a name that nobody can
// resolve does not take a working server out of service.
//
// Replies are hard to forge (RFC 5452): each query has an ID from the system's random
// number generator and leaves through one of several connected sockets, chosen at random.
// The kernel drops datagrams from any other address and port. It also chooses the local
// ports, which are replaced often; see [udpTransport] for an estimate of the protection. A
// message with another ID or question is counted and dropped while the query keeps waiting.
//
// Messages stay in wire format throughout: internal/wire builds the query, checks the reply
// and packs it. Each Pool has one goroutine that closes idle connections, and each UDP
// socket one that reads, unless the caller of [Pool.Start] does. A query over UDP, TCP or TLS starts no goroutine, and with [Pool.Start]
// none waits for a reply that is in time: a [Waiter] goes on when it has arrived.
//
// This is one package because a [query] passes between an exchange, a budget and a transport without an allocation, and each
// uses its fields while it has it. Transports in a package of their own would export some 70 names.
package upstream

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// The errors of [Pool.Exchange]. The client gets REFUSED for ErrTooMany and SERVFAIL for
// all others.
var (
	// ErrLocal marks, for [errors.Is], every error that says nothing about the queried
	// name: a limit of this package; a lack of file descriptors, memory or ports; no route;
	// the end of the caller's context or of the Pool; or an ICMP message, which anyone can
	// forge. Such an error must not be cached or applied to other clients.
	ErrLocal = errors.New("local failure")
	// ErrUnreachable marks, for [errors.Is], the error of an exchange for which a server could not be reached: it refuses or closes
	// connections. That says nothing about the queried name, and must not be cached for it, but holds for all
	// clients that wait for the exchange.
	ErrUnreachable = errors.New("the server can't be reached")
	// ErrTimeout: the server asked last did not answer in time.
	ErrTimeout = errors.New("no answer in time")
	// ErrFailed: the server asked last refused or closed the connection, or sent an invalid
	// DNS message. It is wrapped together with the cause.
	ErrFailed = errors.New("the exchange failed")
	// ErrNoUpstream: no server is configured, or all are down and
	// failfast_all_unhealthy_upstreams is set.
	ErrNoUpstream = errors.New("no upstream is healthy")
	// ErrTooMany: max_concurrent queries, or this client's share of them, are in flight.
	// The client gets REFUSED, which makes stub resolvers try their next server at once.
	ErrTooMany error = localError{errors.New("more than max_concurrent queries")}
	// ErrClosed: the Pool is closed.
	ErrClosed error = localError{errors.New("the upstream pool is closed")}
	// ErrBusy: too many queries, of all clients or of this one, are in flight to the server
	// asked last.
	ErrBusy error = localError{errors.New("too many queries are in flight to this server")}
	// ErrOverBudget: `max_rate` of the server asked last allowed no more queries in time.
	ErrOverBudget error = localError{errors.New("more queries than max_rate allows")}
)

const (
	// DefaultPayload is the EDNS UDP payload size of our queries, in bytes: the IPv6
	// minimum MTU of 1280 less the IPv6 and UDP headers, so that replies are not fragmented
	// (RFC 9715).
	DefaultPayload = 1232
	// DefaultDeadline is the total time of one Exchange. Stub resolvers give up after 5 s
	// (resolv.conf(5), timeout).
	DefaultDeadline = 5 * time.Second
	// DefaultProbeTimeout is the timeout of a health probe.
	DefaultProbeTimeout = time.Second

	// maxRounds is how often one Exchange asks each server at most. The second round
	// recovers from a lost packet when there is only one server; a third does not fit into
	// the deadline.
	maxRounds = 2
	// firstServerTimeout is how long a query waits for the first server of a pool to become
	// known: long enough for a second attempt to look up its name, and shorter than the
	// timeout of stub resolvers.
	firstServerTimeout = 2 * time.Second
	// maxAttempts bounds `max_connect_attempts 0` (no limit), so that a server that refuses
	// at once is not asked in a loop until the deadline.
	maxAttempts = 4 * maxOutstanding * maxRounds
)

// Options holds what a [Pool] needs beside its directive. The zero value is valid.
type Options struct {
	// Logger gets changes of the servers' state; nil discards them.
	Logger *slog.Logger
	// Payload is the EDNS UDP payload size in bytes, limited to 512…4096; 0 means
	// DefaultPayload.
	Payload int
	// Deadline is the total time of one Exchange; 0 means DefaultDeadline.
	Deadline time.Duration
	// ProbeTimeout is the timeout of a health probe; 0 means DefaultProbeTimeout.
	ProbeTimeout time.Duration
	// Endpoints returns the addresses of a Service's ready DNS endpoints, nearest first,
	// and a channel that is closed when they change. service is NAMESPACE/NAME; port 0
	// selects the port named dns, or 53. Endpoints is nil if there is no cluster view.
	Endpoints func(service string, port uint16) (addrs []netip.AddrPort, changed <-chan struct{})
	// Budgets has the budgets of the servers' addresses; nil means that no other Pool shares them.
	Budgets *Budgets
	// Own reports whether an address is the agent's own. Queries are never sent to such an
	// address, even if a name resolves to it. nil means that no address is.
	Own func(to netip.AddrPort) bool
}

// Pool is the servers of one forward directive. It is safe for concurrent use and holds
// sockets and goroutines until [Pool.Close].
type Pool struct {
	*base
	members
	healthMonitor
	next        *Pool // see Chain
	order       serverOrder
	limiter     limiter
	exchanges   sync.Pool
	parked      parkedExchanges
	parkedMu    sync.Mutex
	parkedBy    map[*pollset.Set]*parkedExchanges
	overUDP     bool // for clients that have used UDP
	hedgeBudget *hedgeBudgets

	allDownCount  atomic.Uint64
	rejectedCount atomic.Uint64
}

// base is what the parts of a Pool share.
type base struct {
	cfg     *config.Forward
	opts    Options
	created time.Time
	seed    [2]uint64 // of [base.slotOf]

	stop   context.Context // done when the Pool closes
	cancel context.CancelFunc
	tasks  sync.WaitGroup // probes, shadow queries, watchers and closeIdleLoop

	absence absence
}

// timestamp returns t in nanoseconds since the pool's creation; never 0.
func (b *base) timestamp(t time.Time) int64 { return max(int64(t.Sub(b.created)), 1) }

// New returns the Pool of cfg, which must not change afterwards. It opens no socket.
// Without servers every Exchange returns [ErrNoUpstream].
func New(cfg *config.Forward, opts Options) *Pool {
	opts.setDefaults()
	shared := &base{cfg: cfg, opts: opts, created: time.Now(), seed: [2]uint64{rand.Uint64(), rand.Uint64()}}
	shared.stop, shared.cancel = context.WithCancel(context.Background())
	p := &Pool{base: shared, hedgeBudget: newHedgeBudgets(), order: serverOrder{policy: cfg.Policy}, parkedBy: make(map[*pollset.Set]*parkedExchanges)}
	p.members.base = shared
	p.healthMonitor.base, p.healthMonitor.members = shared, &p.members
	p.limiter = limiter{limit: cfg.MaxConcurrent, slots: share.NewSlots[chan<- struct{}](cfg.MaxConcurrent), idle: make(chan struct{})}
	p.exchanges.New = func() any { return newExchange(p) }
	p.overUDP = !cfg.ForceTCP && !slices.ContainsFunc(cfg.To, func(t config.Target) bool { return t.Transport != config.PlainDNS })
	p.initMembers(cfg.To)
	if cfg.Expire > 0 && len(cfg.To) > 0 {
		p.tasks.Go(p.closeIdleLoop)
	}
	return p
}

// Chain links each pool to the next one, for the options `next` and `next_on_nodata`, and
// returns pools. It must be called before the first Exchange.
func Chain(pools []*Pool) []*Pool {
	for i := 1; i < len(pools); i++ {
		pools[i-1].next = pools[i]
	}
	return pools
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Payload == 0 {
		o.Payload = DefaultPayload
	}
	o.Payload = min(max(o.Payload, wire.MinUDP), maxDatagram)
	if o.Deadline <= 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Budgets == nil {
		o.Budgets = NewBudgets(BudgetOptions{Logger: o.Logger})
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = DefaultProbeTimeout
	}
}

// Covers reports whether name, in lower case and wire format, is forwarded here: it is at
// or below From, and not at or below any Except. From itself is always covered, as in
// CoreDNS.
func (p *Pool) Covers(name []byte) bool {
	if !wire.Under(name, p.cfg.From) {
		return false
	}
	if len(name) == len(p.cfg.From) {
		return true
	}
	for _, e := range p.cfg.Except {
		if wire.Under(name, e) {
			return false
		}
	}
	return true
}

// From identifies who sent a query.
type From struct {
	// Client is charged for the queries in flight. It must stay valid until the exchange
	// returns.
	Client share.Client
	// Addr is the client's address for [BudgetStats]; it may be invalid.
	Addr netip.Addr
	// TCP says that the client used TCP. It decides the protocol unless force_tcp or
	// prefer_udp is set.
	TCP bool
	// NoWait makes the exchange fail with [ErrOverBudget], [ErrBusy] or [ErrTooMany] where it would have to wait before
	// its query can be sent.
	NoWait bool
	// Hedged is set when a further server is asked because one is late; nil: it is of no
	// interest.
	Hedged *atomic.Bool
	// Asked receives who was asked, at the end of the exchange; nil: nobody wants to know.
	Asked *atomic.Pointer[Asked]
	// Record receives each attempt of the exchange, for traces. The zero Recording discards them.
	Record Recording
	// Tap receives each query that is sent; nil: nothing does.
	Tap Tap
}

// urgency returns the urgency of the queries.
func (f *From) urgency() urgency {
	switch {
	case f.NoWait:
		return withStale
	case f.Client == share.NoClient:
		return background
	}
	return forClient
}

// Exchange is [Pool.ExchangeFrom] without a client, for background queries such as
// prefetch.
func (p *Pool) Exchange(ctx context.Context, q *wire.Query, overTCP bool) (wire.Response, error) {
	return p.ExchangeFrom(ctx, q, From{TCP: overTCP})
}

// ExchangeFrom asks the servers for q and returns the first valid reply, whatever its
// rcode. It blocks until there is a reply, the deadline passes, ctx ends, or the Pool is
// closed. q is read until ExchangeFrom returns; the response refers neither to q nor to the
// Pool. Errors are errors of this package, or wrap the error of ctx.
//
// The limits of a Pool, max_concurrent and the queries in flight to a server, are divided
// among the clients as described in package share.
func (p *Pool) ExchangeFrom(ctx context.Context, q *wire.Query, from From) (wire.Response, error) {
	if !p.chained() {
		return p.exchange(ctx, q, from)
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.Deadline) // one deadline for the whole chain
	defer cancel()
	answer, err := p.exchange(ctx, q, from)
	empty := p.cfg.NextOnNodata && answer.Rcode == wire.NoError && answer.Answers == 0
	if err != nil || !empty && !slices.Contains(p.cfg.NextOn, answer.Rcode) {
		return answer, err
	}
	for next := p.next; next != nil; next = next.next {
		if next.Covers(q.Name()) {
			return next.ExchangeFrom(ctx, q, from)
		}
	}
	return answer, nil
}

// chained reports whether an answer may make the query go to the next forward directive.
func (p *Pool) chained() bool {
	return p.next != nil && (p.cfg.NextOnNodata || len(p.cfg.NextOn) > 0)
}

// GRPC reports whether p is the pool of a directive grpc.
func (p *Pool) GRPC() bool { return p.cfg.GRPC }

// exchange is ExchangeFrom with the servers of p only.
func (p *Pool) exchange(ctx context.Context, q *wire.Query, from From) (wire.Response, error) {
	now := time.Now()
	if err := p.acquire(ctx, &from); err != nil {
		return wire.Response{}, err
	}
	x := p.begin(q, &from, now)
	defer p.end(x)
	if d, ok := ctx.Deadline(); ok && d.Before(x.deadline) {
		x.deadline = d
	}
	if len(x.servers) == 0 && p.members.ready != nil {
		p.awaitServers(ctx, x)
	}
	return x.run(ctx)
}

// begin returns an exchange for q, which has come at now and has been admitted by the limiter. The caller ends it.
func (p *Pool) begin(q *wire.Query, from *From, now time.Time) *exchange {
	x := p.exchanges.Get().(*exchange)
	x.slot = p.slotOf(from.Addr)
	p.hedgeBudget.depositFor(x.slot)
	x.request, x.client, x.addr, x.hedged, x.servers = q, from.Client, from.Addr, from.Hedged, p.servers()
	x.urgency = from.urgency()
	x.record, x.tap, x.asked = from.Record, from.Tap, from.Asked
	x.tcp = p.cfg.ForceTCP || from.TCP && !p.cfg.PreferUDP
	x.deadline = now.Add(p.opts.Deadline)
	return x
}

// end makes x available for another exchange.
func (p *Pool) end(x *exchange) {
	c := x.client
	x.reset()
	p.exchanges.Put(x)
	p.limiter.release(c)
}

// awaitServers waits up to firstServerTimeout for the first address of a name or Service.
// Right after a start this mostly takes milliseconds.
func (p *Pool) awaitServers(ctx context.Context, x *exchange) {
	t := time.NewTimer(min(p.opts.Deadline, firstServerTimeout))
	defer t.Stop()
	select {
	case <-p.members.ready:
		x.servers = p.servers()
	case <-t.C:
	case <-ctx.Done():
	case <-p.stop.Done():
	}
}

// failureLimit returns how many attempts may fail before the query fails, with n servers.
func (p *Pool) failureLimit(n int) int {
	switch limit := p.cfg.MaxConnectAttempts; {
	case limit == 0:
		return maxRounds * n
	case limit < 0:
		return maxAttempts
	default:
		return limit
	}
}

// closeIdleLoop closes idle connections until the Pool closes.
func (p *Pool) closeIdleLoop() {
	// Half the expiry closes a connection after at most 1.5 times its expiry, and wakes an
	// idle node rarely.
	t := time.NewTicker(max(p.cfg.Expire/2, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			for _, s := range p.servers() {
				s.closeIdle(now)
			}
		case <-p.stop.Done():
			return
		}
	}
}

// Stats returns a snapshot, which the caller owns.
func (p *Pool) Stats() Stats {
	out := Stats{HealthcheckBroken: p.allDownCount.Load(), MaxConcurrentRejects: p.rejectedCount.Load(), MaxConcurrent: p.limiter.limit}
	out.InFlight = p.limiter.inFlight()
	for _, s := range p.servers() {
		v := Server{
			To:                  s.addr,
			GRPC:                p.cfg.GRPC,
			Down:                p.down(s),
			Durations:           s.durations.snapshot(),
			HealthcheckFailures: s.probeFailures.Load(),
			UnexpectedReplies:   s.unexpected.Load(),
			Suspected:           s.suspected.Load(),
			RTT:                 s.displayedRTT(),
			Hedges:              s.hedges.Load(),
			HedgeWins:           s.hedgeWins.Load(),
			SuspectedTotal:      s.suspectedCount.Load(),
			Broken:              s.brokenConns.Load(),
			Unanswered:          s.unansweredCount.Load(),
			InFlight:            int(s.inFlight.Load()),
			MaxInFlight:         s.protocol(p.cfg.ForceTCP).maxInFlight,
			Budget:              s.budget.stats(time.Now()),
		}
		if s.udp != s.tcp {
			v.UDP.Hits, v.UDP.Misses = s.udp.reuse()
		}
		used := &v.TCP
		switch {
		case s.protocol(true).datagrams:
			used = &v.QUIC
		case s.target.Transport == config.DNSOverTLS:
			used = &v.TLS
		}
		used.Hits, used.Misses = s.tcp.reuse()
		out.Servers = append(out.Servers, v)
	}
	return out
}

// Close ends every exchange with [ErrClosed], stops the background tasks and closes the
// sockets. It blocks until all of that is done. Further calls do nothing.
func (p *Pool) Close() error {
	idle := p.limiter.close()
	p.cancel()
	p.members.mu.Lock() // a concurrent setAddrs has finished, or sees that the pool is closed
	last := p.servers()
	p.members.mu.Unlock()
	for _, s := range last {
		p.members.close(s)
	}
	<-idle
	p.stopParked()
	p.tasks.Wait()
	return nil
}

// isTimeout reports whether err is a timeout of a socket or a context.
func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
