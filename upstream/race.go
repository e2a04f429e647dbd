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

// maxLegs is how many servers one query may be outstanding at. With three of them
// frozen the fourth one answers; half of it would let two that fail together be
// felt, and each leg costs a buffer and an upstream a query.
const maxLegs = 4

// race is one Exchange: the query is asked of one server and, when that one is late or
// fails, of further ones, and the first good reply is the answer. It runs on the
// goroutine of the Exchange, belongs to it alone, and is reused.
type race struct {
	pool     *Pool
	query    *wire.Query
	client   share.Client
	tcp      bool // by which the servers are asked
	deadline time.Time

	servers []*server // all there were when it began
	order   []int     // in which they are asked; none that was down then
	at      int       // where in order to go on
	// left is how many more may fail until no other is asked.
	left int
	// spare is how many more may be asked because others are late.
	spare int
	// desperate says that all servers are down.
	desperate bool

	// legs are the calls of the race; the first flying are with their servers, or in
	// landed. The others are for later.
	legs   [maxLegs]*call
	flying int
	landed chan *call

	// bell rings when a leg may have to be looked after: at rings, of which timer takes
	// care, and now and then for nothing. It is not stopped when the race is over: an
	// armed timer costs the next one nothing, while setting one wakes up a thread.
	bell  chan struct{}
	timer *time.Timer
	rings time.Time
	alarm time.Time // when it has to; zero: never
	// stalled says that it once went off late.
	stalled bool

	// held is a reply that is given if no better one comes, until heldUntil; zero is as
	// long as something is in flight.
	held      wire.Response
	holds     bool
	heldUntil time.Time
	failovers int   // replies with an rcode of `failover`
	err       error // of the last leg that failed
	// local says that one has failed for a reason that says nothing about the name: with
	// an answer of its server the race might have come to something.
	local bool
}

// leg is what a race knows about one of its calls.
type leg struct {
	server *server
	via    transport
	rtt    *rtt
	asked  time.Time // when the server was
	begun  time.Time // when the flight was, which may be a later one
	plain  bool      // without EDNS
	short  wire.Response
	cut    bool // short is what came over UDP

	alarm    time.Time     // when to look after it next; zero: never
	gap      time.Duration // between the last looks; 0 before the first
	waits    waits
	hedge    bool // it was asked because another one was late
	late     bool // it has taken longer than the 95th percentile
	missed   bool // it was counted as missed
	relieved bool // another server was asked because of it
}

func newRace(p *Pool) *race {
	bell := make(chan struct{}, 1)
	ring := func() {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	r := &race{pool: p, landed: make(chan *call, maxLegs), bell: bell, timer: time.AfterFunc(time.Hour, ring)}
	r.timer.Stop()
	return r
}

// reset ends what is in flight, and lets go of the query.
func (r *race) reset() {
	r.withdraw()
	for _, c := range r.legs {
		if c != nil {
			c.reset()
		}
	}
	*r = race{pool: r.pool, order: r.order[:0], legs: r.legs, landed: r.landed, bell: r.bell, timer: r.timer, rings: r.rings}
}

// withdraw ends what is in flight.
func (r *race) withdraw() {
	landing := 0
	for _, c := range r.legs[:r.flying] {
		if !c.leg.via.withdraw(c) {
			landing++
		}
	}
	for range landing {
		<-r.landed
	}
	for _, c := range r.legs[:r.flying] {
		c.leg.server.flying.Add(-1)
	}
	r.flying = 0
}

// run asks until there is an answer, or no sense in going on.
func (r *race) run(ctx context.Context) (wire.Response, error) {
	now := time.Now()
	r.left, r.spare = r.pool.attempts(len(r.servers)), maxLegs-1
	r.line()
	if !r.next(now) {
		return wire.Response{}, ErrNoUpstream
	}
	r.pool.scouts(r, now)
	for r.flying > 0 {
		r.arm(now)
		select {
		case c := <-r.landed:
			now = time.Now()
			answer, ok := r.take(c, now)
			if ok {
				return answer, nil
			}
			if over := r.over(ctx, c); over != nil {
				return wire.Response{}, over
			}
		case <-r.bell:
			now = time.Now()
			if r.ring(now) {
				return r.held, nil
			}
		case <-ctx.Done():
			return wire.Response{}, gone(ctx, r.legs[0])
		}
	}
	if r.holds {
		return r.held, nil
	}
	return wire.Response{}, r.failure()
}

// failure is the error of a race in which nobody has answered.
func (r *race) failure() error {
	if r.local {
		return localError{r.err}
	}
	return r.err
}

// over is why there is no sense in going on after c, which brought no answer; nil if
// there is.
func (r *race) over(ctx context.Context, c *call) error {
	switch {
	case r.err == nil:
		return nil
	case r.pool.stop.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return gone(ctx, c)
	}
	return nil
}

// gone is the error of a race whose Exchange is not waited for any more.
func gone(ctx context.Context, c *call) error {
	err := fmt.Errorf("asking %s: %w", c.leg.server.name, ctx.Err())
	if errors.Is(err, context.Canceled) {
		return localError{err}
	}
	return err
}

// line puts the servers into the order in which they are asked: that of the policy,
// but those that are doubted after the others, and none that is down. With all down
// it is random, since then the probes rather than every server may be at fault.
func (r *race) line() {
	p := r.pool
	all := p.order.fill(r.order[:0], len(r.servers))
	r.order = slices.DeleteFunc(all, func(i int) bool { return p.down(r.servers[i]) })
	if len(r.order) == 0 && len(all) > 0 {
		r.giveUp()
		return
	}
	trusted := r.sort()
	if p.order.policy == config.PolicyFastest && trusted > 1 && r.score(r.order[1]) < r.score(r.order[0]) {
		r.order[0], r.order[1] = r.order[1], r.order[0]
	}
}

// sort puts the servers that are doubted behind the others, and gives how many those
// are.
func (r *race) sort() (trusted int) {
	for _, i := range r.order {
		trusted += 1 - r.rank(i)
	}
	if trusted > 0 && trusted < len(r.order) {
		slices.SortStableFunc(r.order, func(a, b int) int { return r.rank(a) - r.rank(b) })
	}
	return trusted
}

// giveUp is for when all servers are down: one of them is asked and, if it is late,
// another one, unless `failfast_all_unhealthy_upstreams` is set.
func (r *race) giveUp() {
	r.pool.broken.Add(1)
	r.desperate, r.order, r.left, r.spare = true, r.order[:0], 1, 1
	if r.pool.cfg.FailfastAllUnhealthy {
		return
	}
	for i := range r.servers {
		r.order = append(r.order, i)
	}
	rand.Shuffle(len(r.order), func(i, j int) { r.order[i], r.order[j] = r.order[j], r.order[i] })
	r.at = 0
}

// rank is 1 for a server that is doubted.
func (r *race) rank(i int) int {
	if r.servers[i].doubted.Load() {
		return 1
	}
	return 0
}

// unmeasured is the time of a server that nothing is known about, in nanoseconds: it
// is asked once all others are slower than any reply should be. Scouts measure it
// meanwhile.
const unmeasured = int64(time.Second)

// score is the time that the query is expected to take at a server: its smoothed one,
// for each query that it owes an answer. Where two are as fast that spreads the
// load, and one that has stopped to answer is left alone at once.
func (r *race) score(i int) int64 {
	s := r.servers[i]
	_, times := s.route(r.tcp)
	smooth := times.smooth.Load()
	if smooth == 0 {
		smooth = unmeasured
	}
	return smooth * int64(s.flying.Load()+1)
}

// next asks the next server; false if there is none, or no time left.
func (r *race) next(now time.Time) bool {
	s := r.pick(false)
	if s == nil || !now.Before(r.deadline) {
		return false
	}
	r.ask(s, now, false)
	return true
}

// pick gives the next server that is not down and has not got the query now; nil if
// there is none. With trusted it is none that is doubted.
func (r *race) pick(trusted bool) *server {
	for i := range r.order {
		k := (r.at + i) % len(r.order)
		if s := r.servers[r.order[k]]; r.fit(s, trusted) {
			r.at = k + 1
			return s
		}
	}
	if r.flying > 0 || r.desperate || len(r.order) == 0 {
		return nil
	}
	r.giveUp() // all have gone down by now
	if len(r.order) == 0 {
		return nil
	}
	r.at = 1
	return r.servers[r.order[0]]
}

// fit reports whether s can be asked now, and, if it has to be trusted, is.
func (r *race) fit(s *server, trusted bool) bool {
	return !r.has(s) && !(trusted && s.doubted.Load()) && (r.desperate || !r.pool.down(s))
}

// has reports whether the query is outstanding at s.
func (r *race) has(s *server) bool {
	for _, c := range r.legs[:r.flying] {
		if c.leg.server == s {
			return true
		}
	}
	return false
}

// ask sends the query to s. There must be a leg for it.
func (r *race) ask(s *server, now time.Time, hedge bool) {
	c := r.legs[r.flying]
	if c == nil {
		c = newCall()
		c.landed, c.bell = r.landed, r.bell
		r.legs[r.flying] = c
	}
	r.flying++
	s.flying.Add(1)
	c.query, c.client, c.payload, c.tcp = r.query, r.client, uint16(r.pool.opts.Payload), r.tcp
	c.leg = leg{server: s, asked: now, hedge: hedge}
	r.fly(c, now)
}

// fly begins a flight of c, which is the first at its server or one that another reply
// calls for.
func (r *race) fly(c *call, now time.Time) {
	l := &c.leg
	s := l.server
	l.via, l.rtt = s.route(c.tcp)
	l.begun, l.late, l.gap = now, false, 0
	l.waits = r.waits(s, l.rtt)
	l.alarm = now.Add(l.waits.hedge)
	c.until = now.Add(s.readTimeout)
	if r.deadline.Before(c.until) {
		c.until = r.deadline
	}
	c.build(!l.plain)
	c.warned.Store(false)
	l.via.start(c)
}

// waits is how long s is waited for. A server that was not measured yet is expected to
// be as fast as the slowest of the others.
func (r *race) waits(s *server, times *rtt) waits {
	tail, known := times.percentile()
	if !known {
		for _, other := range r.servers {
			_, times := other.route(r.tcp)
			if t, ok := times.percentile(); ok {
				tail, known = max(tail, t), true
			}
		}
	}
	return waitsFor(tail, known, s.readTimeout)
}

// take is what is done about the flight that c has ended. It gives the answer if there
// is one by that.
func (r *race) take(c *call, now time.Time) (wire.Response, bool) {
	l := &c.leg
	r.lands(c)
	if c.err != nil {
		r.failed(c, c.err, now)
		return wire.Response{}, false
	}
	msg := c.reply[:c.got]
	l.rtt.observe(now.Sub(l.begun), l.late, r.pool.stamp(now))
	r.pool.answers(l.server, wire.Rcode(msg[3]&rcodeBits), now)
	if !l.plain && lacksEDNS(msg) {
		l.plain = true
		r.again(c, now)
		return wire.Response{}, false
	}
	answer, err := parse(msg, c)
	if !c.tcp && cut(msg) && l.server.udp != l.server.tcp {
		// Half an answer can't be cached. The client gets it only if TCP fails, and
		// may have more luck there itself. What is cut inside a record is no answer.
		l.short, l.cut = answer, err == nil
		c.tcp, l.plain = true, false
		r.again(c, now)
		return wire.Response{}, false
	}
	if err != nil {
		r.failed(c, err, now)
		return wire.Response{}, false
	}
	return answer, r.judge(c, answer, now)
}

// lands takes c out of those in flight.
func (r *race) lands(c *call) {
	i := slices.Index(r.legs[:r.flying], c)
	r.flying--
	r.legs[i], r.legs[r.flying] = r.legs[r.flying], c
	c.leg.server.flying.Add(-1)
}

// again begins another flight of c, which has just landed.
func (r *race) again(c *call, now time.Time) {
	r.flying++ // c is the first behind those in flight
	c.leg.server.flying.Add(1)
	r.fly(c, now)
}

// judge reports whether answer, from c's server, is the one to give. A server's error
// is not, while another server has the query.
func (r *race) judge(c *call, answer wire.Response, now time.Time) bool {
	l := &c.leg
	l.server.durations.observe(answer.Rcode, now.Sub(l.asked))
	if slices.Contains(r.pool.cfg.Failover, answer.Rcode) {
		r.failovers++
		r.hold(answer, time.Time{})
		if r.failovers < len(r.servers) && (r.flying > 0 || r.next(now)) {
			return false
		}
	} else if r.flying > 0 && (answer.Rcode == wire.ServFail || answer.Rcode == wire.Refused) {
		r.hold(answer, now.Add(l.waits.late))
		return false
	}
	r.win(c, now)
	return true
}

// hold keeps answer for want of a better one.
func (r *race) hold(answer wire.Response, until time.Time) {
	r.held, r.holds, r.heldUntil = answer, true, until
}

// win notes that c's server was first.
func (r *race) win(c *call, now time.Time) {
	if c.leg.hedge {
		c.leg.server.wins.Add(1)
	}
	for _, other := range r.legs[:r.flying] {
		if l := &other.leg; !l.asked.After(c.leg.asked) {
			r.beaten(l, now)
		}
	}
}

// beaten notes that l's server was asked first and would have been second.
func (r *race) beaten(l *leg, now time.Time) {
	s, p := l.server, r.pool
	l.rtt.atLeast(now.Sub(l.begun))
	if !l.missed {
		l.missed = true
		p.miss(s)
	}
	if s.heard.Load() < p.stamp(l.begun) {
		p.suspect(s) // nothing came from it meanwhile; the probe says whether it lives
	}
}

// failed is the end of c without a reply.
func (r *race) failed(c *call, err error, now time.Time) {
	l := &c.leg
	s, p := l.server, r.pool
	if l.cut { // TCP has failed
		r.hold(l.short, time.Time{})
	}
	r.err, r.local = fmt.Errorf("asking %s: %w", s.name, cause(err)), r.local || local(err)
	switch {
	case p.stop.Err() != nil:
		return
	case unreachable(err):
		p.doubt(s)
		p.suspect(s)
	case local(err): // ours, or gone from the set
	default:
		if !l.missed {
			p.miss(s)
		}
		p.suspect(s)
	}
	if r.left--; r.left > 0 && r.flying == 0 && !r.holds {
		r.next(now)
	}
}
