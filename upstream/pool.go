// Package upstream forwards queries to other DNS servers.
//
// [Pool.Exchange] is a [exchange]: it puts the servers into the order of the policy and
// asks the first that is not down. When that one fails, the next is asked, twice
// around at most and never past the whole deadline. When it takes longer than
// nineteen of twenty of its replies do, the next is asked, too, and the first good
// reply is the answer; a [hedgeBudget] of 5 % bounds these extra queries. A server that
// lets queries pass in a row while it says nothing is doubted, within tens of
// milliseconds ([passiveHealth]): then others are asked first, and what it was asked is asked
// of them at once. A copy of a query now and then, a scout, shows when it is back.
//
// A server is asked over UDP, TCP, TLS or HTTPS through a [transport]; a UDP reply
// that is cut is fetched again over TCP, and a server that can't read EDNS is asked
// again without it. The first failure of a server starts a probe that goes on, at the
// health interval, until one reply comes; only failed probes count towards max_fails,
// so that one name no one can resolve does not take a good server out of service.
//
// Replies are hard to forge (RFC 5452): every query has an ID from the system's
// generator and goes out of one of a few connected sockets, drawn at random, so
// that the kernel drops what comes from any other address and port; ports are
// drawn by the kernel and soon retired ([udpTransport] says what that is worth). What
// arrives with another ID or question is counted and dropped, and the wait goes
// on.
//
// Messages stay bytes from end to end: internal/wire builds the query, checks
// the reply and packs it. One goroutine per Pool retires what is idle or old,
// one per UDP socket reads; a query starts none.
package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// What [Pool.Exchange] fails with. Every one but ErrTooMany is SERVFAIL to the
// client.
var (
	// ErrLocal is what [errors.Is] finds in every error that says nothing about the name
	// that was asked for: a limit of this package, a lack of files, memory or ports, no
	// route, the end of the caller's context or of the Pool, or an ICMP message, which
	// anybody may have sent. Such an error is no reason to fail the next client, and must
	// not be kept. It has no text of its own.
	ErrLocal = errors.New("not because of the name")
	// ErrTimeout: the server asked last did not answer in time.
	ErrTimeout = errors.New("no answer in time")
	// ErrFailed: the server asked last refused the connection, broke it off, or
	// sent a reply that is no DNS message. The cause is wrapped beside it.
	ErrFailed = errors.New("the exchange failed")
	// ErrNoUpstream: none is configured, or all are down and
	// failfast_all_unhealthy_upstreams is set.
	ErrNoUpstream = errors.New("no upstream is healthy")
	// ErrTooMany: max_concurrent queries are on their way already, or as many of this
	// client's as there is place for more. The client gets REFUSED, which makes stub
	// resolvers ask their next server at once.
	ErrTooMany error = localError{errors.New("more than max_concurrent queries")}
	// ErrClosed: the Pool is closed.
	ErrClosed error = localError{errors.New("the upstream pool is closed")}
	// ErrBusy: too many queries are in flight to the server asked last, or as many of
	// this client's as there is place for more.
	ErrBusy error = localError{errors.New("too many queries are in flight to this server")}
)

const (
	// DefaultPayload is the UDP size our queries claim. 1232 is the IPv6 minimum
	// MTU of 1280 less the IPv6 and UDP headers: no path fragments it (RFC 9715).
	// Twice that would be fragmented or lost, half would send every signed
	// answer to TCP.
	DefaultPayload = 1232
	// DefaultDeadline is all the time one Exchange has. Stub resolvers ask again
	// after 5 s (resolv.conf(5), timeout): an answer after that finds nobody.
	DefaultDeadline = 5 * time.Second
	// DefaultProbeTimeout is how long a probe waits. A server that takes longer
	// for a name in its cache is of no use; half would call a server behind a
	// slow link or under load dead.
	DefaultProbeTimeout = time.Second

	// maxRounds is how often each server is asked at most in one Exchange: the second
	// time helps when one packet was lost on the way to the only server; a third
	// one does not fit into the deadline.
	maxRounds = 2
	// firstServerTimeout is how long a query waits for the pool to know a server at all: half
	// of it fails queries while a resolver is asked a second time, after double stub
	// resolvers have given up.
	firstServerTimeout = 2 * time.Second
	// maxAttempts is what `max_connect_attempts 0`, which sets no limit, is taken for:
	// a server that refuses at once must not be asked all the time until the deadline.
	// Half is met by 15 servers in their second turn, double by nobody in time.
	maxAttempts = 4 * maxOutstanding * maxRounds
)

// Options is what a [Pool] needs beside its directive. The zero value is ready.
type Options struct {
	// Logger gets a line when a server goes down or comes back; nil is silence.
	Logger *slog.Logger
	// Payload is the UDP size claimed, DefaultPayload where 0, cut to 512…4096.
	Payload int
	// Deadline is all the time of one Exchange, DefaultDeadline where 0.
	Deadline time.Duration
	// ProbeTimeout is how long a probe waits, DefaultProbeTimeout where 0.
	ProbeTimeout time.Duration
	// Endpoints gives the addresses of a Service's ready endpoints that answer DNS,
	// nearest first, and a channel that is closed when they have changed; port 0 is
	// the one named dns, or 53. service is NAMESPACE/NAME. nil where there is no view
	// of the cluster.
	Endpoints func(service string, port uint16) (addrs []netip.AddrPort, changed <-chan struct{})
	// Own reports whether queries to an address come back to the agent, so that none
	// are sent there, whatever a name turns out to be. nil knows of none.
	Own func(to netip.AddrPort) bool
}

// Pool is the servers of one forward directive. It is safe for concurrent use.
// It holds sockets and goroutines until [Pool.Close].
type Pool struct {
	cfg        *config.Forward
	opts       Options
	created    time.Time
	serverList atomic.Pointer[[]*server]
	members
	next        *Pool // see Chain
	order       serverOrder
	limiter     limiter
	exchanges   sync.Pool
	hedgeBudget *hedgeBudget
	// nextShadow is when scouts are due, as a stamp.
	nextShadow atomic.Int64

	stop   context.Context // done when the Pool closes: probes, dials, the sweeper
	cancel context.CancelFunc
	tasks  sync.WaitGroup // probes and the sweeper

	allDownCount  atomic.Uint64
	rejectedCount atomic.Uint64
}

// New makes the Pool of cfg, which must not change from here on. It opens no
// socket. Without servers every Exchange is [ErrNoUpstream].
func New(cfg *config.Forward, opts Options) *Pool {
	opts.setDefaults()
	p := &Pool{cfg: cfg, opts: opts, created: time.Now(), hedgeBudget: newHedgeBudget(), order: serverOrder{policy: cfg.Policy}}
	p.limiter = limiter{limit: cfg.MaxConcurrent, division: share.NewDivision(cfg.MaxConcurrent), idle: make(chan struct{})}
	p.exchanges.New = func() any { return newExchange(p) }
	p.stop, p.cancel = context.WithCancel(context.Background())
	p.initMembers(cfg.To)
	if cfg.Expire > 0 && len(cfg.To) > 0 {
		p.tasks.Go(p.closeIdleLoop)
	}
	return p
}

// Chain makes each pool the one that `next` and `next_on_nodata` of the pool before it
// lead to, and gives pools back. It is called before the first Exchange.
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
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = DefaultProbeTimeout
	}
}

// Covers reports whether name, lower case and in wire form, is forwarded here:
// it is at or under From, and not at or under an Except. From itself is always
// covered, as in CoreDNS.
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

// From is who asks.
type From struct {
	// Client is who the queries in flight are counted for; it must be that client's
	// number until the exchange is over.
	Client share.Client
	// TCP says that the client came over TCP, which decides the protocol where neither
	// force_tcp nor prefer_udp is set.
	TCP bool
}

// Exchange is [Pool.ExchangeFrom] for what no client waits for.
func (p *Pool) Exchange(ctx context.Context, q *wire.Query, overTCP bool) (wire.Response, error) {
	return p.ExchangeFrom(ctx, q, From{TCP: overTCP})
}

// ExchangeFrom asks the servers for q and gives the first valid reply, whatever its
// rcode. It blocks until the reply, the whole deadline, ctx, or Close. q is read until it
// returns; the response refers to neither q nor anything of the Pool. Errors are those of
// this package or, wrapped, that of ctx.
//
// What a Pool bounds, queries in flight to a server and `max_concurrent`, it divides
// among the clients as package share says.
func (p *Pool) ExchangeFrom(ctx context.Context, q *wire.Query, from From) (wire.Response, error) {
	if p.next == nil || !p.cfg.NextOnNodata && len(p.cfg.NextOn) == 0 {
		return p.exchange(ctx, q, from)
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.Deadline) // one for the whole chain
	defer cancel()
	answer, err := p.exchange(ctx, q, from)
	if err != nil || !p.goesToNext(answer) {
		return answer, err
	}
	for next := p.next; next != nil; next = next.next {
		if next.Covers(q.Name()) {
			return next.ExchangeFrom(ctx, q, from)
		}
	}
	return answer, nil
}

// goesToNext reports whether the query goes to the next forward because of answer.
func (p *Pool) goesToNext(answer wire.Response) bool {
	return p.cfg.NextOnNodata && answer.Rcode == wire.NoError && answer.Answers == 0 || slices.Contains(p.cfg.NextOn, answer.Rcode)
}

// exchange is ExchangeFrom with the servers of p alone.
func (p *Pool) exchange(ctx context.Context, q *wire.Query, from From) (wire.Response, error) {
	if err := p.limiter.acquire(from.Client); err != nil {
		if errors.Is(err, ErrTooMany) {
			p.rejectedCount.Add(1)
		}
		return wire.Response{}, err
	}
	defer p.limiter.release(from.Client)
	p.hedgeBudget.deposit()
	x := p.exchanges.Get().(*exchange)
	defer func() {
		x.reset()
		p.exchanges.Put(x)
	}()
	x.request, x.client, x.servers = q, from.Client, p.servers()
	x.tcp = p.cfg.ForceTCP || from.TCP && !p.cfg.PreferUDP
	x.deadline = time.Now().Add(p.opts.Deadline)
	if d, ok := ctx.Deadline(); ok && d.Before(x.deadline) {
		x.deadline = d
	}
	if len(x.servers) == 0 && p.members.ready != nil {
		p.awaitServers(ctx, x)
	}
	return x.run(ctx)
}

// awaitServers waits until names or Services have led to the first server, for a while:
// an agent that has just started finds out within milliseconds, mostly.
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

// servers are those there are now. The list is not changed any more.
func (p *Pool) servers() []*server { return *p.serverList.Load() }

// failureLimit is how many of n servers, or how often one of them, may fail before the
// query does.
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

// closeIdleLoop closes what has been idle for too long.
func (p *Pool) closeIdleLoop() {
	// Half the expiry: a connection is closed at most 1.5 times its age, and a
	// node with nothing to do wakes up once in 5 s.
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

// Close ends every exchange with [ErrClosed], stops the probes and closes the
// sockets. It waits until all of that is done. A second call does nothing.
func (p *Pool) Close() error {
	idle := p.limiter.close()
	p.cancel()
	p.members.mu.Lock() // who changes the set is through, or sees that it is too late
	last := p.servers()
	p.members.mu.Unlock()
	for _, s := range last {
		s.close()
	}
	<-idle
	p.tasks.Wait()
	return nil
}

// limiter counts the exchanges on their way, bounds them, and lets Close wait for
// them. A WaitGroup can't: its Add must not race with Wait.
type limiter struct {
	mu       sync.Mutex
	active   int
	limit    int            // 0: none
	division share.Division // of limit
	closed   bool
	idle     chan struct{} // closed once the gate is closed and n is 0
}

func (l *limiter) acquire(c share.Client) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if l.limit > 0 {
		if l.division.Ask(c) != share.Fits {
			return ErrTooMany
		}
		l.division.Add(c)
	}
	l.active++
	return nil
}

func (l *limiter) release(c share.Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 {
		l.division.Remove(c)
	}
	if l.active--; l.active == 0 && l.closed {
		close(l.idle)
	}
}

func (l *limiter) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.active == 0 {
		close(l.idle)
	}
	l.closed = true
	return l.idle
}

// isTimeout reports whether err is a deadline, of a socket or of a context.
func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
