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
	x := &exchange{pool: p, completed: make(chan *query, maxOutstanding), wakeup: bell, timer: time.AfterFunc(time.Hour, ring)}
	x.timer.Stop()
	return x
}

// reset ends what is in flight, and lets go of the query.
func (x *exchange) reset() {
	x.cancelAll()
	for _, q := range x.queries {
		if q != nil {
			q.reset()
		}
	}
	*x = exchange{pool: x.pool, order: x.order[:0], queries: x.queries, completed: x.completed, wakeup: x.wakeup, timer: x.timer, timerAt: x.timerAt}
}

// cancelAll ends what is in flight.
func (x *exchange) cancelAll() {
	landing := 0
	for _, q := range x.queries[:x.inFlight] {
		if !q.attempt.via.cancel(q) {
			landing++
		}
	}
	for range landing {
		<-x.completed
	}
	for _, q := range x.queries[:x.inFlight] {
		q.attempt.server.inFlight.Add(-1)
	}
	x.inFlight = 0
}

// run asks until there is an answer, or no sense in going on.
func (x *exchange) run(ctx context.Context) (wire.Response, error) {
	now := time.Now()
	x.failuresLeft, x.hedgesLeft = x.pool.failureLimit(len(x.servers)), maxOutstanding-1
	x.orderServers()
	if !x.askNext(now) {
		return wire.Response{}, ErrNoUpstream
	}
	x.pool.sendShadows(x, now)
	for x.inFlight > 0 {
		x.armTimer(now)
		select {
		case q := <-x.completed:
			now = time.Now()
			answer, ok := x.handleCompletion(q, now)
			if ok {
				return answer, nil
			}
			if over := x.abortReason(ctx, q); over != nil {
				return wire.Response{}, over
			}
		case <-x.wakeup:
			now = time.Now()
			if x.onWakeup(now) {
				return x.fallback, nil
			}
		case <-ctx.Done():
			return wire.Response{}, contextError(ctx, x.queries[0])
		}
	}
	if x.hasFallback {
		return x.fallback, nil
	}
	return wire.Response{}, x.finalError()
}

// finalError is the error of a race in which nobody has answered.
func (x *exchange) finalError() error {
	if x.localFailure {
		return localError{x.err}
	}
	return x.err
}

// abortReason is why there is no sense in going on after c, which brought no answer; nil if
// there is.
func (x *exchange) abortReason(ctx context.Context, q *query) error {
	switch {
	case x.err == nil:
		return nil
	case x.pool.stop.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return contextError(ctx, q)
	}
	return nil
}

// contextError is the error of a race whose Exchange is not waited for any more.
func contextError(ctx context.Context, q *query) error {
	err := fmt.Errorf("asking %s: %w", q.attempt.server.label, ctx.Err())
	if errors.Is(err, context.Canceled) {
		return localError{err}
	}
	return err
}

// orderServers puts the servers into the order in which they are asked: that of the policy,
// but those that are doubted after the others, and none that is down. With all down
// it is random, since then the probes rather than every server may be at fault.
func (x *exchange) orderServers() {
	p := x.pool
	all := p.order.appendOrder(x.order[:0], len(x.servers))
	x.order = slices.DeleteFunc(all, func(i int) bool { return p.down(x.servers[i]) })
	if len(x.order) == 0 && len(all) > 0 {
		x.enterAllDown()
		return
	}
	trusted := x.moveSuspectsBack()
	if p.order.policy == config.PolicyFastest && trusted > 1 && x.expectedTime(x.order[1]) < x.expectedTime(x.order[0]) {
		x.order[0], x.order[1] = x.order[1], x.order[0]
	}
}

// moveSuspectsBack puts the servers that are doubted behind the others, and gives how many those
// are.
func (x *exchange) moveSuspectsBack() (trusted int) {
	for _, i := range x.order {
		trusted += 1 - x.suspectRank(i)
	}
	if trusted > 0 && trusted < len(x.order) {
		slices.SortStableFunc(x.order, func(a, b int) int { return x.suspectRank(a) - x.suspectRank(b) })
	}
	return trusted
}

// enterAllDown is for when all servers are down: one of them is asked and, if it is late,
// another one, unless `failfast_all_unhealthy_upstreams` is set.
func (x *exchange) enterAllDown() {
	x.pool.allDownCount.Add(1)
	x.allDown, x.order, x.failuresLeft, x.hedgesLeft = true, x.order[:0], 1, 1
	if x.pool.cfg.FailfastAllUnhealthy {
		return
	}
	for i := range x.servers {
		x.order = append(x.order, i)
	}
	rand.Shuffle(len(x.order), func(i, j int) { x.order[i], x.order[j] = x.order[j], x.order[i] })
	x.nextIndex = 0
}

// suspectRank is 1 for a server that is doubted.
func (x *exchange) suspectRank(i int) int {
	if x.servers[i].suspected.Load() {
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
func (x *exchange) expectedTime(i int) int64 {
	s := x.servers[i]
	_, times := s.transportFor(x.tcp)
	smooth := times.srtt.Load()
	if smooth == 0 {
		smooth = unmeasuredRTT
	}
	return smooth * int64(s.inFlight.Load()+1)
}

// askNext asks the next server; false if there is none, or no time left.
func (x *exchange) askNext(now time.Time) bool {
	s := x.nextServer(false)
	if s == nil || !now.Before(x.deadline) {
		return false
	}
	x.ask(s, now, false)
	return true
}

// nextServer gives the next server that is not down and has not got the query now; nil if
// there is none. With trusted it is none that is doubted.
func (x *exchange) nextServer(trusted bool) *server {
	for i := range x.order {
		k := (x.nextIndex + i) % len(x.order)
		if s := x.servers[x.order[k]]; x.eligible(s, trusted) {
			x.nextIndex = k + 1
			return s
		}
	}
	if x.inFlight > 0 || x.allDown || len(x.order) == 0 {
		return nil
	}
	x.enterAllDown() // all have gone down by now
	if len(x.order) == 0 {
		return nil
	}
	x.nextIndex = 1
	return x.servers[x.order[0]]
}

// eligible reports whether s can be asked now, and, if it has to be trusted, is.
func (x *exchange) eligible(s *server, trusted bool) bool {
	return !x.outstandingAt(s) && !(trusted && s.suspected.Load()) && (x.allDown || !x.pool.down(s))
}

// outstandingAt reports whether the query is outstanding at s.
func (x *exchange) outstandingAt(s *server) bool {
	for _, q := range x.queries[:x.inFlight] {
		if q.attempt.server == s {
			return true
		}
	}
	return false
}

// ask sends the query to s. There must be a leg for it.
func (x *exchange) ask(s *server, now time.Time, hedge bool) {
	q := x.queries[x.inFlight]
	if q == nil {
		q = newQuery()
		q.done, q.wakeup = x.completed, x.wakeup
		x.queries[x.inFlight] = q
	}
	x.inFlight++
	s.inFlight.Add(1)
	q.request, q.client, q.payload, q.tcp = x.request, x.client, uint16(x.pool.opts.Payload), x.tcp
	q.attempt = attempt{server: s, started: now, isHedge: hedge}
	x.send(q, now)
}

// send begins a flight of c, which is the first at its server or one that another reply
// calls for.
func (x *exchange) send(q *query, now time.Time) {
	a := &q.attempt
	s := a.server
	a.via, a.rtt = s.transportFor(q.tcp)
	a.sent, a.slowCounted, a.checkInterval = now, false, 0
	a.delays = x.delaysFor(s, a.rtt)
	a.nextCheck = now.Add(a.delays.hedge)
	q.deadline = now.Add(s.readTimeout)
	if x.deadline.Before(q.deadline) {
		q.deadline = x.deadline
	}
	q.build(!a.withoutEDNS)
	q.softError.Store(false)
	a.via.start(q)
}

// delaysFor is how long s is waited for. A server that was not measured yet is expected to
// be as fast as the slowest of the others.
func (x *exchange) delaysFor(s *server, times *rtt) delays {
	tail, known := times.percentile95()
	if !known {
		for _, other := range x.servers {
			_, times := other.transportFor(x.tcp)
			if t, ok := times.percentile95(); ok {
				tail, known = max(tail, t), true
			}
		}
	}
	return delaysFor(tail, known, s.readTimeout)
}

// handleCompletion is what is done about the flight that c has ended. It gives the answer if there
// is one by that.
func (x *exchange) handleCompletion(q *query, now time.Time) (wire.Response, bool) {
	a := &q.attempt
	x.removeInFlight(q)
	if q.err != nil {
		x.handleFailure(q, q.err, now)
		return wire.Response{}, false
	}
	msg := q.reply[:q.replyLen]
	a.rtt.observe(now.Sub(a.sent), a.slowCounted, x.pool.timestamp(now))
	x.pool.recordReply(a.server, wire.Rcode(msg[3]&rcodeBits), now)
	if !a.withoutEDNS && lacksEDNS(msg) {
		a.withoutEDNS = true
		x.resend(q, now)
		return wire.Response{}, false
	}
	answer, err := parseResponse(msg, q)
	if !q.tcp && isTruncated(msg) && a.server.udp != a.server.tcp {
		// Half an answer can't be cached. The client gets it only if TCP fails, and
		// may have more luck there itself. What is cut inside a record is no answer.
		a.truncated, a.hasTruncated = answer, err == nil
		q.tcp, a.withoutEDNS = true, false
		x.resend(q, now)
		return wire.Response{}, false
	}
	if err != nil {
		x.handleFailure(q, err, now)
		return wire.Response{}, false
	}
	return answer, x.accept(q, answer, now)
}

// removeInFlight takes c out of those in flight.
func (x *exchange) removeInFlight(q *query) {
	i := slices.Index(x.queries[:x.inFlight], q)
	x.inFlight--
	x.queries[i], x.queries[x.inFlight] = x.queries[x.inFlight], q
	q.attempt.server.inFlight.Add(-1)
}

// resend begins another flight of c, which has just landed.
func (x *exchange) resend(q *query, now time.Time) {
	x.inFlight++ // c is the first behind those in flight
	q.attempt.server.inFlight.Add(1)
	x.send(q, now)
}

// accept reports whether answer, from c's server, is the one to give. A server's error
// is not, while another server has the query.
func (x *exchange) accept(q *query, answer wire.Response, now time.Time) bool {
	a := &q.attempt
	a.server.durations.observe(answer.Rcode, now.Sub(a.started))
	if slices.Contains(x.pool.cfg.Failover, answer.Rcode) {
		x.failovers++
		x.keepFallback(answer, time.Time{})
		if x.failovers < len(x.servers) && (x.inFlight > 0 || x.askNext(now)) {
			return false
		}
	} else if x.inFlight > 0 && (answer.Rcode == wire.ServFail || answer.Rcode == wire.Refused) {
		x.keepFallback(answer, now.Add(a.delays.unanswered))
		return false
	}
	x.recordWin(q, now)
	return true
}

// keepFallback keeps answer for want of a better one.
func (x *exchange) keepFallback(answer wire.Response, until time.Time) {
	x.fallback, x.hasFallback, x.fallbackUntil = answer, true, until
}

// recordWin notes that c's server was first.
func (x *exchange) recordWin(q *query, now time.Time) {
	if q.attempt.isHedge {
		q.attempt.server.hedgeWins.Add(1)
	}
	for _, other := range x.queries[:x.inFlight] {
		if a := &other.attempt; !a.started.After(q.attempt.started) {
			x.recordLostRace(a, now)
		}
	}
}

// recordLostRace notes that l's server was asked first and would have been second.
func (x *exchange) recordLostRace(a *attempt, now time.Time) {
	s, p := a.server, x.pool
	a.rtt.observeAtLeast(now.Sub(a.sent))
	if !a.unanswered {
		a.unanswered = true
		p.recordUnanswered(s)
	}
	if s.lastReply.Load() < p.timestamp(a.sent) {
		p.startProbe(s) // nothing came from it meanwhile; the probe says whether it lives
	}
}

// handleFailure is the end of c without a reply.
func (x *exchange) handleFailure(q *query, err error, now time.Time) {
	a := &q.attempt
	s, p := a.server, x.pool
	if a.hasTruncated { // TCP has failed
		x.keepFallback(a.truncated, time.Time{})
	}
	x.err, x.localFailure = fmt.Errorf("asking %s: %w", s.label, publicError(err)), x.localFailure || isLocal(err)
	switch {
	case p.stop.Err() != nil:
		return
	case isUnreachable(err):
		p.suspect(s)
		p.startProbe(s)
	case isLocal(err): // ours, or gone from the set
	default:
		if !a.unanswered {
			p.recordUnanswered(s)
		}
		p.startProbe(s)
	}
	if x.failuresLeft--; x.failuresLeft > 0 && x.inFlight == 0 && !x.hasFallback {
		x.askNext(now)
	}
}
