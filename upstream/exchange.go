package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxOutstanding is how many servers one query may be outstanding at. With three of them
// frozen the fourth one answers; half of it would let two that fail together be
// felt, and each leg costs a buffer and an upstream a query.
const maxOutstanding = 4

// exchange is one Exchange: the query is asked of one server and, when that one is late or
// fails, of further ones, and the first good reply is the answer. It runs on the
// goroutine of the Exchange, belongs to it alone, and is reused.
type exchange struct {
	pool     *Pool
	request  *wire.Query
	client   share.Client
	tcp      bool // by which the servers are asked
	deadline time.Time

	servers   []*server // all there were when it began
	order     []int     // in which they are asked; none that was down then
	nextIndex int       // where in order to go on
	// failuresLeft is how many more may fail until no other is asked.
	failuresLeft int
	// hedgesLeft is how many more may be asked because others are late.
	hedgesLeft int
	// allDown says that all servers are down.
	allDown bool

	// queries are the calls of the race; the first flying are with their servers, or in
	// landed. The others are for later.
	queries   [maxOutstanding]*query
	inFlight  int
	completed chan *query

	// wakeup rings when a leg may have to be looked after: at rings, of which timer takes
	// care, and now and then for nothing. It is not stopped when the race is over: an
	// armed timer costs the next one nothing, while setting one wakes up a thread.
	wakeup    chan struct{}
	timer     *time.Timer
	timerAt   time.Time
	nextCheck time.Time // when it has to; zero: never
	// timerWasLate says that it once went off late.
	timerWasLate bool

	// fallback is a reply that is given if no better one comes, until heldUntil; zero is as
	// long as something is in flight.
	fallback      wire.Response
	hasFallback   bool
	fallbackUntil time.Time
	failovers     int   // replies with an rcode of `failover`
	err           error // of the last leg that failed
	// localFailure says that one has failed for a reason that says nothing about the name: with
	// an answer of its server the race might have come to something.
	localFailure bool
}

// attempt is what a race knows about one of its calls.
type attempt struct {
	server       *server
	via          transport
	rtt          *rtt
	started      time.Time // when the server was
	sent         time.Time // when the flight was, which may be a later one
	withoutEDNS  bool      // without EDNS
	truncated    wire.Response
	hasTruncated bool // short is what came over UDP

	nextCheck     time.Time     // when to look after it next; zero: never
	checkInterval time.Duration // between the last looks; 0 before the first
	delays        delays
	isHedge       bool // it was asked because another one was late
	slowCounted   bool // it has taken longer than the 95th percentile
	unanswered    bool // it was counted as missed
	hedged        bool // another server was asked because of it
}

func newExchange(p *Pool) *exchange {
	bell := make(chan struct{}, 1)
	ring := func() {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	r := &exchange{pool: p, completed: make(chan *query, maxOutstanding), wakeup: bell, timer: time.AfterFunc(time.Hour, ring)}
	r.timer.Stop()
	return r
}

// reset ends what is in flight, and lets go of the query.
func (r *exchange) reset() {
	r.cancelAll()
	for _, c := range r.queries {
		if c != nil {
			c.reset()
		}
	}
	*r = exchange{pool: r.pool, order: r.order[:0], queries: r.queries, completed: r.completed, wakeup: r.wakeup, timer: r.timer, timerAt: r.timerAt}
}

// cancelAll ends what is in flight.
func (r *exchange) cancelAll() {
	landing := 0
	for _, c := range r.queries[:r.inFlight] {
		if !c.attempt.via.cancel(c) {
			landing++
		}
	}
	for range landing {
		<-r.completed
	}
	for _, c := range r.queries[:r.inFlight] {
		c.attempt.server.inFlight.Add(-1)
	}
	r.inFlight = 0
}

// run asks until there is an answer, or no sense in going on.
func (r *exchange) run(ctx context.Context) (wire.Response, error) {
	now := time.Now()
	r.failuresLeft, r.hedgesLeft = r.pool.failureLimit(len(r.servers)), maxOutstanding-1
	r.orderServers()
	if !r.askNext(now) {
		return wire.Response{}, ErrNoUpstream
	}
	r.pool.sendShadows(r, now)
	for r.inFlight > 0 {
		r.armTimer(now)
		select {
		case c := <-r.completed:
			now = time.Now()
			answer, ok := r.handleCompletion(c, now)
			if ok {
				return answer, nil
			}
			if over := r.abortReason(ctx, c); over != nil {
				return wire.Response{}, over
			}
		case <-r.wakeup:
			now = time.Now()
			if r.onWakeup(now) {
				return r.fallback, nil
			}
		case <-ctx.Done():
			return wire.Response{}, contextError(ctx, r.queries[0])
		}
	}
	if r.hasFallback {
		return r.fallback, nil
	}
	return wire.Response{}, r.finalError()
}

// finalError is the error of a race in which nobody has answered.
func (r *exchange) finalError() error {
	if r.localFailure {
		return localError{r.err}
	}
	return r.err
}

// abortReason is why there is no sense in going on after c, which brought no answer; nil if
// there is.
func (r *exchange) abortReason(ctx context.Context, c *query) error {
	switch {
	case r.err == nil:
		return nil
	case r.pool.stop.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return contextError(ctx, c)
	}
	return nil
}

// contextError is the error of a race whose Exchange is not waited for any more.
func contextError(ctx context.Context, c *query) error {
	err := fmt.Errorf("asking %s: %w", c.attempt.server.label, ctx.Err())
	if errors.Is(err, context.Canceled) {
		return localError{err}
	}
	return err
}

// orderServers puts the servers into the order in which they are asked: that of the policy,
// but those that are doubted after the others, and none that is down. With all down
// it is random, since then the probes rather than every server may be at fault.
func (r *exchange) orderServers() {
	p := r.pool
	all := p.order.appendOrder(r.order[:0], len(r.servers))
	r.order = slices.DeleteFunc(all, func(i int) bool { return p.down(r.servers[i]) })
	if len(r.order) == 0 && len(all) > 0 {
		r.enterAllDown()
		return
	}
	trusted := r.moveSuspectsBack()
	if p.order.policy == config.PolicyFastest && trusted > 1 && r.expectedTime(r.order[1]) < r.expectedTime(r.order[0]) {
		r.order[0], r.order[1] = r.order[1], r.order[0]
	}
}

// moveSuspectsBack puts the servers that are doubted behind the others, and gives how many those
// are.
func (r *exchange) moveSuspectsBack() (trusted int) {
	for _, i := range r.order {
		trusted += 1 - r.suspectRank(i)
	}
	if trusted > 0 && trusted < len(r.order) {
		slices.SortStableFunc(r.order, func(a, b int) int { return r.suspectRank(a) - r.suspectRank(b) })
	}
	return trusted
}

// enterAllDown is for when all servers are down: one of them is asked and, if it is late,
// another one, unless `failfast_all_unhealthy_upstreams` is set.
func (r *exchange) enterAllDown() {
	r.pool.allDownCount.Add(1)
	r.allDown, r.order, r.failuresLeft, r.hedgesLeft = true, r.order[:0], 1, 1
	if r.pool.cfg.FailfastAllUnhealthy {
		return
	}
	for i := range r.servers {
		r.order = append(r.order, i)
	}
	rand.Shuffle(len(r.order), func(i, j int) { r.order[i], r.order[j] = r.order[j], r.order[i] })
	r.nextIndex = 0
}

// suspectRank is 1 for a server that is doubted.
func (r *exchange) suspectRank(i int) int {
	if r.servers[i].suspected.Load() {
		return 1
	}
	return 0
}

// unmeasuredRTT is the time of a server that nothing is known about, in nanoseconds: it
// is asked once all others are slower than any reply should be. Scouts measure it
// meanwhile.
const unmeasuredRTT = int64(time.Second)

// expectedTime is the time that the query is expected to take at a server: its smoothed one,
// for each query that it owes an answer. Where two are as fast that spreads the
// load, and one that has stopped to answer is left alone at once.
func (r *exchange) expectedTime(i int) int64 {
	s := r.servers[i]
	_, times := s.transportFor(r.tcp)
	smooth := times.srtt.Load()
	if smooth == 0 {
		smooth = unmeasuredRTT
	}
	return smooth * int64(s.inFlight.Load()+1)
}

// askNext asks the next server; false if there is none, or no time left.
func (r *exchange) askNext(now time.Time) bool {
	s := r.nextServer(false)
	if s == nil || !now.Before(r.deadline) {
		return false
	}
	r.ask(s, now, false)
	return true
}

// nextServer gives the next server that is not down and has not got the query now; nil if
// there is none. With trusted it is none that is doubted.
func (r *exchange) nextServer(trusted bool) *server {
	for i := range r.order {
		k := (r.nextIndex + i) % len(r.order)
		if s := r.servers[r.order[k]]; r.eligible(s, trusted) {
			r.nextIndex = k + 1
			return s
		}
	}
	if r.inFlight > 0 || r.allDown || len(r.order) == 0 {
		return nil
	}
	r.enterAllDown() // all have gone down by now
	if len(r.order) == 0 {
		return nil
	}
	r.nextIndex = 1
	return r.servers[r.order[0]]
}

// eligible reports whether s can be asked now, and, if it has to be trusted, is.
func (r *exchange) eligible(s *server, trusted bool) bool {
	return !r.outstandingAt(s) && !(trusted && s.suspected.Load()) && (r.allDown || !r.pool.down(s))
}

// outstandingAt reports whether the query is outstanding at s.
func (r *exchange) outstandingAt(s *server) bool {
	for _, c := range r.queries[:r.inFlight] {
		if c.attempt.server == s {
			return true
		}
	}
	return false
}

// ask sends the query to s. There must be a leg for it.
func (r *exchange) ask(s *server, now time.Time, hedge bool) {
	c := r.queries[r.inFlight]
	if c == nil {
		c = newQuery()
		c.done, c.wakeup = r.completed, r.wakeup
		r.queries[r.inFlight] = c
	}
	r.inFlight++
	s.inFlight.Add(1)
	c.request, c.client, c.payload, c.tcp = r.request, r.client, uint16(r.pool.opts.Payload), r.tcp
	c.attempt = attempt{server: s, started: now, isHedge: hedge}
	r.send(c, now)
}

// send begins a flight of c, which is the first at its server or one that another reply
// calls for.
func (r *exchange) send(c *query, now time.Time) {
	l := &c.attempt
	s := l.server
	l.via, l.rtt = s.transportFor(c.tcp)
	l.sent, l.slowCounted, l.checkInterval = now, false, 0
	l.delays = r.delaysFor(s, l.rtt)
	l.nextCheck = now.Add(l.delays.hedge)
	c.deadline = now.Add(s.readTimeout)
	if r.deadline.Before(c.deadline) {
		c.deadline = r.deadline
	}
	c.build(!l.withoutEDNS)
	c.softError.Store(false)
	l.via.start(c)
}

// delaysFor is how long s is waited for. A server that was not measured yet is expected to
// be as fast as the slowest of the others.
func (r *exchange) delaysFor(s *server, times *rtt) delays {
	tail, known := times.percentile95()
	if !known {
		for _, other := range r.servers {
			_, times := other.transportFor(r.tcp)
			if t, ok := times.percentile95(); ok {
				tail, known = max(tail, t), true
			}
		}
	}
	return delaysFor(tail, known, s.readTimeout)
}

// handleCompletion is what is done about the flight that c has ended. It gives the answer if there
// is one by that.
func (r *exchange) handleCompletion(c *query, now time.Time) (wire.Response, bool) {
	l := &c.attempt
	r.removeInFlight(c)
	if c.err != nil {
		r.handleFailure(c, c.err, now)
		return wire.Response{}, false
	}
	msg := c.reply[:c.replyLen]
	l.rtt.observe(now.Sub(l.sent), l.slowCounted, r.pool.timestamp(now))
	r.pool.recordReply(l.server, wire.Rcode(msg[3]&rcodeBits), now)
	if !l.withoutEDNS && lacksEDNS(msg) {
		l.withoutEDNS = true
		r.resend(c, now)
		return wire.Response{}, false
	}
	answer, err := parseResponse(msg, c)
	if !c.tcp && isTruncated(msg) && l.server.udp != l.server.tcp {
		// Half an answer can't be cached. The client gets it only if TCP fails, and
		// may have more luck there itself. What is cut inside a record is no answer.
		l.truncated, l.hasTruncated = answer, err == nil
		c.tcp, l.withoutEDNS = true, false
		r.resend(c, now)
		return wire.Response{}, false
	}
	if err != nil {
		r.handleFailure(c, err, now)
		return wire.Response{}, false
	}
	return answer, r.accept(c, answer, now)
}

// removeInFlight takes c out of those in flight.
func (r *exchange) removeInFlight(c *query) {
	i := slices.Index(r.queries[:r.inFlight], c)
	r.inFlight--
	r.queries[i], r.queries[r.inFlight] = r.queries[r.inFlight], c
	c.attempt.server.inFlight.Add(-1)
}

// resend begins another flight of c, which has just landed.
func (r *exchange) resend(c *query, now time.Time) {
	r.inFlight++ // c is the first behind those in flight
	c.attempt.server.inFlight.Add(1)
	r.send(c, now)
}

// accept reports whether answer, from c's server, is the one to give. A server's error
// is not, while another server has the query.
func (r *exchange) accept(c *query, answer wire.Response, now time.Time) bool {
	l := &c.attempt
	l.server.durations.observe(answer.Rcode, now.Sub(l.started))
	if slices.Contains(r.pool.cfg.Failover, answer.Rcode) {
		r.failovers++
		r.keepFallback(answer, time.Time{})
		if r.failovers < len(r.servers) && (r.inFlight > 0 || r.askNext(now)) {
			return false
		}
	} else if r.inFlight > 0 && (answer.Rcode == wire.ServFail || answer.Rcode == wire.Refused) {
		r.keepFallback(answer, now.Add(l.delays.unanswered))
		return false
	}
	r.recordWin(c, now)
	return true
}

// keepFallback keeps answer for want of a better one.
func (r *exchange) keepFallback(answer wire.Response, until time.Time) {
	r.fallback, r.hasFallback, r.fallbackUntil = answer, true, until
}

// recordWin notes that c's server was first.
func (r *exchange) recordWin(c *query, now time.Time) {
	if c.attempt.isHedge {
		c.attempt.server.hedgeWins.Add(1)
	}
	for _, other := range r.queries[:r.inFlight] {
		if l := &other.attempt; !l.started.After(c.attempt.started) {
			r.recordLostRace(l, now)
		}
	}
}

// recordLostRace notes that l's server was asked first and would have been second.
func (r *exchange) recordLostRace(l *attempt, now time.Time) {
	s, p := l.server, r.pool
	l.rtt.observeAtLeast(now.Sub(l.sent))
	if !l.unanswered {
		l.unanswered = true
		p.recordUnanswered(s)
	}
	if s.lastReply.Load() < p.timestamp(l.sent) {
		p.startProbe(s) // nothing came from it meanwhile; the probe says whether it lives
	}
}

// handleFailure is the end of c without a reply.
func (r *exchange) handleFailure(c *query, err error, now time.Time) {
	l := &c.attempt
	s, p := l.server, r.pool
	if l.hasTruncated { // TCP has failed
		r.keepFallback(l.truncated, time.Time{})
	}
	r.err, r.localFailure = fmt.Errorf("asking %s: %w", s.label, publicError(err)), r.localFailure || isLocal(err)
	switch {
	case p.stop.Err() != nil:
		return
	case isUnreachable(err):
		p.suspect(s)
		p.startProbe(s)
	case isLocal(err): // ours, or gone from the set
	default:
		if !l.unanswered {
			p.recordUnanswered(s)
		}
		p.startProbe(s)
	}
	if r.failuresLeft--; r.failuresLeft > 0 && r.inFlight == 0 && !r.hasFallback {
		r.askNext(now)
	}
}
