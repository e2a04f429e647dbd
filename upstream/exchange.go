package upstream

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/pollset"
	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxOutstanding is how many servers may have one query at the same time. With three of
// them frozen the fourth still answers; each costs a buffer and the upstreams a query.
const maxOutstanding = 4

// exchange is the state of one Exchange: it asks one server and, when that one is late or
// fails, further ones; the first good reply is the answer. It belongs to the goroutine of
// the Exchange, or while it is parked to no goroutine (see [Waiter]), and is reused.
type exchange struct {
	pool     *Pool
	request  *wire.Query
	client   share.Client
	addr     netip.Addr // see From
	slot     int        // of the client, see [base.slotOf]
	urgency  urgency
	hedged   *atomic.Bool           // see From
	record   Recording              // see From
	tap      Tap                    // see From
	asked    *atomic.Pointer[Asked] // see From
	waiter   *Waiter                // nil: a goroutine waits from the beginning
	readBy   *pollset.Set           // of [Waiter], during [Pool.Start]
	tcp      bool                   // ask over TCP
	deadline time.Time

	servers   []*server // all servers at the start of the exchange
	order     []int     // indices of servers in the order to ask them, without those that are down
	nextIndex int       // position in order to continue from
	// failuresLeft is how many more attempts may fail before the exchange fails.
	failuresLeft int
	// hedgesLeft is how many more servers may be asked because others are late.
	hedgesLeft int
	// allDown says that all servers are down.
	allDown bool

	// queries holds the queries of the exchange. The first inFlight of them are in flight,
	// or waiting in completed; the others are unused.
	queries   [maxOutstanding]*query
	inFlight  int
	completed chan *query

	// wakeup is signalled when a query may need a check: by timer at timerAt, by soft
	// errors, and sometimes needlessly. The timer stays armed after the exchange: an armed
	// timer costs the next exchange nothing, while setting one wakes a thread.
	wakeup    chan struct{}
	timer     *time.Timer
	timerAt   time.Time
	ring      func()    // signals wakeup
	begun     time.Time // when the first server was asked
	parked    *parkedExchanges
	parkedAt  int       // one more than its index in parked; 0: it is not there
	nextCheck time.Time // when a check is due; zero: never
	// timerWasLate says that the timer has fired late once.
	timerWasLate bool

	// fallback is the reply to return if no better one arrives until fallbackUntil. A zero
	// fallbackUntil means as long as a query is in flight.
	fallback      wire.Response
	hasFallback   bool
	fallbackUntil time.Time
	// fallbackRecord is the number of the attempt with the fallback in the recording.
	fallbackRecord int
	// failedOver are the servers that have replied with an rcode of `failover`, or with what can't be read over UDP nor got over TCP.
	// They are not asked again.
	failedOver []*server
	err        error // of the last failed attempt
	// localFailure says that an attempt failed for a local reason ([ErrLocal]); its server
	// might have answered.
	localFailure bool
	rounds       rounds

	// last is the server that was asked last, or the one that has answered. askedOther and hedgeWon are
	// those of [Asked].
	last                 *server
	askedOther, hedgeWon bool
}

func newExchange(p *Pool) *exchange {
	bell := make(chan struct{}, 1)
	ring := func() {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	x := &exchange{pool: p, completed: make(chan *query, maxOutstanding), wakeup: bell, timer: time.AfterFunc(time.Hour, ring), ring: ring}
	x.timer.Stop()
	return x
}

// reset cancels the queries in flight and drops references to the request.
func (x *exchange) reset() {
	x.cancelAll()
	if x.pausing() {
		x.pool.absence.leave(x)
	}
	for _, q := range x.queries {
		if q != nil {
			q.reset()
		}
	}
	clear(x.failedOver)
	clear(x.rounds.away)
	*x = exchange{pool: x.pool, order: x.order[:0], failedOver: x.failedOver[:0], rounds: rounds{away: x.rounds.away[:0]}, queries: x.queries, completed: x.completed, wakeup: x.wakeup, timer: x.timer, timerAt: x.timerAt, ring: x.ring}
}

// cancelAll cancels the queries in flight.
func (x *exchange) cancelAll() {
	landing := 0
	for _, q := range x.queries[:x.inFlight] {
		if sent := q.phase == inTransport; q.cancel() {
			x.tapEnd(q, sent, false, time.Time{})
		} else {
			landing++
		}
	}
	for range landing {
		q := <-x.completed
		x.tapEnd(q, q.phase == inTransport, q.err == nil, time.Now())
	}
	for _, q := range x.queries[:x.inFlight] {
		q.leave()
		q.attempt.server.inFlight.Add(-1)
	}
	x.inFlight = 0
}

// run asks servers until there is an answer or no point in continuing.
func (x *exchange) run(ctx context.Context) (wire.Response, error) {
	now := time.Now()
	x.start(now)
	return x.finish(ctx, now)
}

// start asks the first server. It does not block.
func (x *exchange) start(now time.Time) {
	x.begun = now
	x.failuresLeft, x.hedgesLeft = x.pool.failureLimit(len(x.servers)), maxOutstanding-1
	x.orderServers()
	if !x.askNext(now) {
		x.err = ErrNoUpstream
		return
	}
	x.pool.sendShadows(x, now)
}

// finish waits for the end of an exchange that was started, and tells those who want to know.
func (x *exchange) finish(ctx context.Context, now time.Time) (wire.Response, error) {
	answer, err := x.wait(ctx, now)
	if x.asked != nil && x.last != nil {
		x.asked.Store(&Asked{Server: x.last.addr, Hedged: x.askedOther, HedgeWon: x.hedgeWon})
	}
	x.record.finish()
	return answer, err
}

// wait waits for the answer, and asks further servers where necessary.
func (x *exchange) wait(ctx context.Context, now time.Time) (wire.Response, error) {
	if q := x.pollCompleted(); q != nil {
		now = time.Now()
		if answer, over, err := x.settle(ctx, q, now); over {
			return answer, err
		}
	}
	return x.waitBlocking(ctx, now)
}

// waitBlocking is wait when no query has completed yet.
func (x *exchange) waitBlocking(ctx context.Context, now time.Time) (wire.Response, error) {
	for x.inFlight > 0 || x.pausing() {
		x.armTimer(now)
		select {
		case q := <-x.completed:
			now = time.Now()
			if answer, over, err := x.settle(ctx, q, now); over {
				return answer, err
			}
		case <-x.wakeup:
			now = time.Now()
			if x.onWakeup(now) {
				return x.useFallback(), nil
			}
		case <-ctx.Done():
			return wire.Response{}, contextError(ctx, x.queries[0])
		case <-x.stopWaiting():
			return wire.Response{}, ErrClosed
		}
	}
	return x.result()
}

// pollCompleted returns the query that has completed while no goroutine waited; nil if there is none. It costs much less than
// the select of waitBlocking.
func (x *exchange) pollCompleted() *query {
	if x.waiter == nil {
		return nil
	}
	select {
	case q := <-x.completed:
		return q
	default:
		return nil
	}
}

// settle processes the result of q, and reports whether the exchange is over.
func (x *exchange) settle(ctx context.Context, q *query, now time.Time) (answer wire.Response, over bool, err error) {
	if answer, over = x.handleCompletion(q, now); over {
		return answer, true, nil
	}
	err = x.abortReason(ctx, q)
	return wire.Response{}, err != nil, err
}

// result is the result of an exchange without an answer: the fallback, or the error of the last attempt.
func (x *exchange) result() (wire.Response, error) {
	switch {
	case x.hasFallback:
		return x.useFallback(), nil
	case x.localFailure:
		return wire.Response{}, localError{x.err}
	case x.rounds.unreachable:
		return wire.Response{}, unreachableError{x.err}
	}
	return wire.Response{}, x.err
}

// abortReason returns why the exchange must end after q failed; nil if it may continue.
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

// contextError is the error of an exchange whose context has ended.
func contextError(ctx context.Context, q *query) error {
	err := newQueryError(q, netip.AddrPort{}, ctx.Err(), ctx.Err())
	if errors.Is(err, context.Canceled) {
		return localError{err}
	}
	return err
}

// askNext asks the next server; false if there is none or the deadline has passed.
func (x *exchange) askNext(now time.Time) bool {
	s := x.preferReady(x.nextServer(false), now)
	if s == nil || !now.Before(x.deadline) {
		return false
	}
	x.send(x.newQuery(s, now, false), now)
	return true
}

// nextServer returns the next server that is not down, does not have the query in flight,
// has not replied with an rcode of `failover`, and could be reached in this round; nil if there
// is none. With trusted it skips suspect servers.
func (x *exchange) nextServer(trusted bool) *server {
	for i := range x.order {
		k := (x.nextIndex + i) % len(x.order)
		if s := x.servers[x.order[k]]; x.eligible(s, trusted) {
			x.nextIndex = k + 1
			return s
		}
	}
	if x.inFlight > 0 || x.allDown || len(x.order) == 0 || len(x.failedOver) > 0 || len(x.rounds.away) > 0 {
		return nil
	}
	x.enterAllDown() // all servers have gone down since the start
	if len(x.order) == 0 {
		return nil
	}
	x.nextIndex = 1
	return x.servers[x.order[0]]
}

// eligible reports whether s may be asked now; with trusted, a suspect server may not.
func (x *exchange) eligible(s *server, trusted bool) bool {
	if x.allDown && len(x.rounds.away) > 0 { // one of them is asked in each round
		return false
	}
	return !x.outstandingAt(s) && !slices.Contains(x.failedOver, s) && !slices.Contains(x.rounds.away, s) &&
		!(trusted && s.suspected.Load()) && (x.allDown || !x.pool.down(s))
}

// outstandingAt reports whether the query is in flight to s.
func (x *exchange) outstandingAt(s *server) bool {
	for _, q := range x.queries[:x.inFlight] {
		if q.attempt.server == s {
			return true
		}
	}
	return false
}

// newQuery adds a query to s. The caller ensures that inFlight is below maxOutstanding, and sends it.
func (x *exchange) newQuery(s *server, now time.Time, hedge bool) *query {
	q := x.queries[x.inFlight]
	if q == nil {
		q = newQuery()
		q.done, q.wakeup, q.exchange = x.completed, x.wakeup, x
		x.queries[x.inFlight] = q
	}
	x.inFlight++
	s.inFlight.Add(1)
	q.request, q.client, q.clientAddr, q.payload, q.tcp = x.request, x.client, x.addr, uint16(x.pool.opts.Payload), x.tcp
	q.attempt = attempt{server: s, started: now, isHedge: hedge}
	q.parking = x.waiter
	x.last, x.askedOther = s, x.askedOther || hedge
	return q
}

// handleCompletion processes the result of q. It returns the answer, and true if that ends
// the exchange.
func (x *exchange) handleCompletion(q *query, now time.Time) (wire.Response, bool) {
	if q.err == errAdmitted { //nolint:errorlint // it is never wrapped
		x.admit(q, now)
		return wire.Response{}, false
	}
	a := &q.attempt
	sent := q.phase == inTransport
	x.removeInFlight(q) // first: after a panic, x must not wait for q
	x.tapEnd(q, sent, q.err == nil, now)
	x.recordEnd(q, now)
	if q.err != nil {
		x.handleFailure(q, q.err, now)
		return wire.Response{}, false
	}
	msg := q.reply[:q.replyLen]
	x.observeReply(q, now)
	if x.resendChanged(q, msg, now) {
		return wire.Response{}, false
	}
	answer, err := a.parsed, error(nil)
	if !a.isParsed {
		answer, err = parseResponse(msg, q)
	}
	if q.overUDP() && (isTruncated(msg) || err != nil) {
		x.resendTruncated(q, answer, err, now)
		return wire.Response{}, false
	}
	if err != nil {
		x.handleFailure(q, err, now)
		return wire.Response{}, false
	}
	return answer, x.accept(q, answer, now)
}

// observeReply learns from the time and the rcode of the reply to q.
func (x *exchange) observeReply(q *query, now time.Time) {
	a, took := &q.attempt, now.Sub(q.attempt.sent)
	a.rtt.observe(took, a.slowCounted, x.pool.timestamp(now))
	a.rtt.clients.observe(x.slot, max(int64(took), 1), a.slowCounted)
	if q.tcp {
		resetFlag(&a.server.tcpSilent)
	}
	x.pool.recordReply(a.server, wire.Rcode(q.reply[3]&rcodeBits), x.request.Name(), now)
}

// resendTruncated sends q again over TCP, because its reply is truncated, or can't be read to its end with err: middleboxes and
// some servers cut replies without setting TC. A truncated answer can't be cached. The client gets it only if TCP fails, and
// may then succeed over TCP itself.
func (x *exchange) resendTruncated(q *query, answer wire.Response, err error, now time.Time) {
	a := &q.attempt
	if a.cut = err != nil; a.cut {
		answer, err = q.truncatedReply()
	}
	a.truncated, a.hasTruncated, a.truncatedRecord = answer, err == nil, a.recorded
	q.tcp, a.withoutEDNS, a.retry = true, false, retryTruncated
	x.resend(q, now)
}

// resendChanged sends q again with another OPT record, if msg, its reply, asks for that: without one, or with another cookie.
func (x *exchange) resendChanged(q *query, msg []byte, now time.Time) bool {
	a := &q.attempt
	bare := lacksEDNS(msg)
	if q.cookie.sent && !(bare && !q.cookie.known) {
		if verdict := a.server.cookies.observe(&q.cookie, msg, now, q.overUDP(), a.cookieAgain); verdict != cookieGood {
			a.cookieAgain, a.retry = true, retryCookie
			q.tcp = q.tcp || verdict == cookieOverTCP
			x.resend(q, now)
			return true
		}
	}
	if a.withoutEDNS || !bare {
		return false
	}
	a.withoutEDNS, a.retry = true, retryEDNS
	x.resend(q, now)
	return true
}

// removeInFlight removes q from the queries in flight.
func (x *exchange) removeInFlight(q *query) {
	i := slices.Index(x.queries[:x.inFlight], q)
	x.inFlight--
	x.queries[i], x.queries[x.inFlight] = x.queries[x.inFlight], q
	q.leave()
	q.attempt.server.inFlight.Add(-1)
}

// resend sends q, which has just completed, again.
func (x *exchange) resend(q *query, now time.Time) {
	x.inFlight++ // removeInFlight has put q right behind those in flight
	q.attempt.server.inFlight.Add(1)
	x.send(q, now)
}

// accept reports whether answer, the reply to q, is the final one. An error rcode is not
// while another server has the query.
func (x *exchange) accept(q *query, answer wire.Response, now time.Time) bool {
	a := &q.attempt
	a.server.durations.observe(answer.Rcode, now.Sub(a.started))
	if slices.Contains(x.pool.cfg.Failover, answer.Rcode) {
		if !slices.Contains(x.failedOver, a.server) {
			x.failedOver = append(x.failedOver, a.server)
		}
		x.keepFallback(a, answer, time.Time{})
		if len(x.failedOver) < len(x.servers) && (x.inFlight > 0 || x.askNext(now)) {
			return false
		}
	} else if x.inFlight > 0 && (answer.Rcode == wire.ServFail || answer.Rcode == wire.Refused) {
		x.keepFallback(a, answer, now.Add(a.delays.unanswered))
		return false
	}
	x.recordWin(q, now)
	return true
}

// keepFallback keeps answer, the reply to a, in case no better one arrives.
func (x *exchange) keepFallback(a *attempt, answer wire.Response, until time.Time) {
	x.fallback, x.hasFallback, x.fallbackUntil, x.fallbackRecord = answer, true, until, a.recorded
}

// recordWin records that q was answered first.
func (x *exchange) recordWin(q *query, now time.Time) {
	x.last, x.hedgeWon = q.attempt.server, q.attempt.isHedge
	x.record.use(q.attempt.recorded)
	if q.attempt.isHedge {
		q.attempt.server.hedgeWins.Add(1)
	}
	x.recordRepeat(q, now)
	for _, other := range x.queries[:x.inFlight] {
		if a := &other.attempt; other.phase == inTransport && !a.lost && !a.started.After(q.attempt.started) {
			x.recordLostRace(a, now)
		}
	}
}

// recordLostRace records that the server of a was asked no later than the winner and has
// not answered.
func (x *exchange) recordLostRace(a *attempt, now time.Time) {
	s, p := a.server, x.pool
	a.rtt.observeAtLeast(now.Sub(a.sent))
	s.unansweredCount.Add(1)
	if !a.unanswered {
		a.unanswered = true
		p.recordUnanswered(s)
	}
	if s.lastReply.Load() < p.timestamp(a.sent) {
		p.startProbe(s) // no reply from it since then; find out whether it is alive
	}
}
