package upstream

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/share"
)

// maxShownClients bounds [BudgetStats.Clients].
const maxShownClients = 5

// BudgetOptions hold what [Budgets] need. The zero value is valid.
type BudgetOptions struct {
	// Logger gets what `max_rate auto` finds; nil discards it.
	Logger *slog.Logger
	// Drops returns a function that reads how many packets the network has dropped so far because of a budget for queries
	// to an address. It is called once for each address with `max_rate auto`; its error says why there is no such counter.
	// nil means that there is none.
	Drops func(to netip.Addr) (read func() (uint64, error), err error)
}

// Budgets are the budgets of upstream addresses (`max_rate`). Pools that share one share the budgets, so that a budget
// holds for all blocks, and across reloads. It is safe for concurrent use.
type Budgets struct {
	opts BudgetOptions

	mu    sync.Mutex
	all   map[netip.AddrPort]*budget
	share BudgetShare
}

// NewBudgets returns Budgets that have no budget yet.
func NewBudgets(opts BudgetOptions) *Budgets {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Budgets{opts: opts, all: make(map[netip.AddrPort]*budget)}
}

// open returns the budget of the address to for a server with the limit m, which may be zero. The server must close it
// with the same limit.
func (bs *Budgets) open(to netip.AddrPort, m config.MaxRate) *budget {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.all[to]
	if b == nil {
		now := time.Now()
		b = &budget{to: to, opts: &bs.opts, created: now, refilled: now, part: bs.share.part()}
		bs.all[to] = b
	}
	b.setLimits(append(b.limits, m))
	return b
}

// close takes back one open.
func (bs *Budgets) close(b *budget, m config.MaxRate) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	i := slices.Index(b.limits, m)
	b.setLimits(slices.Delete(slices.Clone(b.limits), i, i+1))
	if len(b.limits) == 0 && bs.all[b.to] == b {
		delete(bs.all, b.to)
	}
}

// urgency says for what a query is sent.
type urgency uint8

const (
	// forClient: a client waits for it, and may go on waiting.
	forClient urgency = iota
	// withStale: a client has an expired answer, which it gets if the query would have to wait.
	withStale
	// background: no client waits for it, or for another query, too.
	background
	// forProbe: it is a health probe.
	forProbe
	// forDown: it is a health probe of a server that is down.
	forDown
)

// admission is the result of asking for a slot or a token.
type admission uint8

const (
	admitted admission = iota
	queued
	refused
)

// budget is a token bucket for the queries to one upstream address, and the queue of those that wait for a token. Between
// two moments that are t apart no more than burst + rate·t queries pass.
//
// A query takes a token when it is handed to its transport. Queries for which no client waits get
// one only while no other query waits, and while the bucket is half full, or for probes a quarter.
type budget struct {
	to      netip.AddrPort
	opts    *BudgetOptions
	created time.Time
	limits  []config.MaxRate // of the servers; guarded by the lock of Budgets
	// limited says that a server has a limit. Without one, nothing else is used.
	limited atomic.Bool

	mu          sync.Mutex
	fixed       config.MaxRate // the least of limits; zero: none
	auto        *autoLimit     // nil without `max_rate auto`
	rate, burst float64        // tokens per second, and the size of the bucket; a rate of 0 is no limit
	part        float64        // of rate and burst that this process may use; see [BudgetShare]
	tokens      float64
	refilled    time.Time // when tokens was calculated
	queue       share.Queue[*query]
	timer       *time.Timer // serves the queue; nil until one waits
	scheduled   bool        // the timer is set
	sent        recentCount

	waited, expired, givenUp uint64
}

// setLimits sets the limits of the servers, of which the least applies.
func (b *budget) setLimits(limits []config.MaxRate) {
	b.limits = limits
	var fixed config.MaxRate
	auto := false
	for _, m := range limits {
		auto = auto || m.Auto
		if m.PerSecond > 0 && (fixed.PerSecond == 0 || m.PerSecond < fixed.PerSecond || m.PerSecond == fixed.PerSecond && m.Burst < fixed.Burst) {
			fixed = m
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fixed = fixed
	b.setAuto(auto)
	b.applyLimit(time.Now())
	b.limited.Store(auto || fixed.PerSecond > 0)
}

// applyLimit sets rate and burst from fixed and auto; b is locked. A bucket that gets its first limit is full, but empty if
// another process sends queries, too.
func (b *budget) applyLimit(now time.Time) {
	b.refill(now)
	old := b.rate
	b.rate, b.burst = float64(b.fixed.PerSecond), float64(b.fixed.Burst)
	if b.auto != nil && b.auto.limit > 0 && (b.rate == 0 || b.auto.limit < b.rate) {
		b.rate = b.auto.limit
		b.burst = max(1, b.rate/config.MaxRateBurstPart)
	}
	switch {
	case old == 0 && b.part < 1:
		b.tokens = 0
	case old == 0:
		b.tokens = b.burst
	}
	b.tokens = min(b.tokens, b.size())
	b.serve(now)
}

// refill adds the tokens since the last call; b is locked.
func (b *budget) refill(now time.Time) {
	if d := now.Sub(b.refilled); d > 0 {
		b.tokens = min(b.size(), b.tokens+b.part*b.rate*d.Seconds())
		b.refilled = now
	}
}

// admit takes a token for q, which is sent on behalf of u. If there is none, q is queued if u is forClient: it is completed with
// errAdmitted once it has its token, unless it is taken back with [budget.cancel] before.
func (b *budget) admit(q *query, u urgency, now time.Time) admission {
	if !b.limited.Load() {
		return admitted
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.take(u, now):
		return admitted
	case u == forClient:
		b.waited++
		b.queue.Push(q.client, q.wait())
		b.schedule()
		return queued
	}
	b.givenUp++
	return refused
}

// try is [budget.admit] without a query that could wait. u is not forClient.
func (b *budget) try(u urgency, now time.Time) bool { return b.admit(nil, u, now) == admitted }

// available reports whether a query on behalf of u would be admitted without waiting.
func (b *budget) available(u urgency, now time.Time) bool {
	if !b.limited.Load() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	return b.enough(u)
}

// take takes a token if there is one for u; b is locked.
func (b *budget) take(u urgency, now time.Time) bool {
	b.refill(now)
	if !b.enough(u) {
		return false
	}
	b.spend(now)
	return true
}

// enough reports whether there is a token for u; b is locked.
func (b *budget) enough(u urgency) bool {
	if b.rate == 0 {
		return true
	}
	least := 1.0
	switch u {
	case background:
		least = max(1, b.size()/2)
	case forProbe:
		least = max(1, b.size()/4)
	case forDown: // its tokens are hardly used by others
		return b.tokens >= 1
	}
	return b.queue.Len() == 0 && b.tokens >= least
}

// resend takes a token for a query that is sent again because its connection has failed. It has waited before, so that it
// overtakes others; but it fails if there is no token.
func (b *budget) resend() bool {
	return b.try(forDown, time.Now())
}

// spend takes one token; b is locked.
func (b *budget) spend(now time.Time) {
	if b.rate > 0 {
		b.tokens--
	}
	b.sent.add(now.Sub(b.created))
	if b.auto != nil {
		b.auto.querySent(now)
	}
}

// refund gives back a token that was not used.
func (b *budget) refund() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.size(), b.tokens+1)
	b.sent.current = max(0, b.sent.current-1)
}

// cancel takes q out of the queue. It returns false if q has a token already: then it is in q.done or about to be.
func (b *budget) cancel(q *query) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.Remove(&q.waiter)
}

// expire is [budget.cancel] for a query that has waited for too long.
func (b *budget) expire(q *query) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.queue.Remove(&q.waiter) {
		return false
	}
	b.expired++
	return true
}

// serve gives tokens to those that wait, and sets the timer if some still wait; b is locked.
func (b *budget) serve(now time.Time) {
	b.refill(now)
	for b.queue.Len() > 0 && (b.tokens >= 1 || b.rate == 0) {
		b.spend(now)
		q := b.queue.Pop(now).Value
		q.hasToken = true
		q.complete(errAdmitted)
	}
	if b.queue.Len() > 0 {
		b.schedule()
	}
}

// minServeInterval is the time between two calls of serve, if the bucket holds the tokens of that time: a
// high rate does not wake the agent for each token.
const minServeInterval = time.Millisecond

// schedule sets the timer to when the next token is there, unless it is set; b is locked and has a rate. Without a part of
// the budget there will be no token until setPart.
func (b *budget) schedule() {
	if b.scheduled || b.part == 0 {
		return
	}
	b.scheduled = true
	rate := b.rate * b.part
	seconds := max((1-b.tokens)/rate, min(minServeInterval.Seconds(), b.size()/(2*rate)))
	d := time.Duration(seconds*float64(time.Second)) + 1 // rounded up
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.onTimer)
		return
	}
	b.timer.Reset(d)
}

func (b *budget) onTimer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scheduled = false
	b.serve(time.Now())
}

// stats returns a snapshot; nil if no server has a limit.
func (b *budget) stats(now time.Time) *BudgetStats {
	if !b.limited.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &BudgetStats{Limit: b.rate, Auto: b.auto != nil, Waiting: b.queue.Len(), Waited: b.waited, Expired: b.expired, GivenUp: b.givenUp}
	if b.rate > 0 {
		at := now.Sub(b.created)
		b.sent.advance(at)
		// The events of each full second count as if they were evenly distributed.
		s.Used = (b.sent.current + b.sent.preceding*(1-(at%time.Second).Seconds())) / b.rate
	}
	b.queue.EachClient(func(oldest *share.Waiter[*query], n int) {
		c := BudgetClient{Addr: oldest.Value.clientAddr, Waiting: n}
		i, _ := slices.BinarySearchFunc(s.Clients, c, func(a, b BudgetClient) int { return b.Waiting - a.Waiting })
		if i < maxShownClients {
			s.Clients = slices.Insert(s.Clients, i, c)
			s.Clients = s.Clients[:min(len(s.Clients), maxShownClients)]
		}
	})
	return s
}

// recentCount counts events of the last second. Times are since any fixed moment.
type recentCount struct {
	second             int64
	current, preceding float64
}

func (r *recentCount) add(at time.Duration) {
	r.advance(at)
	r.current++
}

func (r *recentCount) advance(at time.Duration) {
	switch second := int64(at / time.Second); second - r.second {
	case 0:
	case 1:
		r.second, r.preceding, r.current = second, r.current, 0
	default:
		r.second, r.preceding, r.current = second, 0, 0
	}
}

// BudgetShare is the part of each budget that this process may use, while another one sends queries to the same
// addresses.
type BudgetShare uint8

const (
	// WholeBudget: no other process sends queries.
	WholeBudget BudgetShare = iota
	// HalfBudget: another process has the other half of the rate and of the burst.
	HalfBudget
	// NoBudget: another process has the whole budget. Queries wait.
	NoBudget
)

// part returns the share as a number.
func (s BudgetShare) part() float64 {
	switch s {
	case HalfBudget:
		return 0.5
	case NoBudget:
		return 0
	}
	return 1
}

// SetShare sets the part of all budgets that this process may use, present and future ones. Tokens beyond it are lost, so that two
// processes together never have more than a budget, if one gives its part away before the other takes it.
func (bs *Budgets) SetShare(s BudgetShare) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.share = s
	now := time.Now()
	for _, b := range bs.all {
		b.setPart(s.part(), now)
	}
}

// Share returns what was set with SetShare; WholeBudget at first.
func (bs *Budgets) Share() BudgetShare {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.share
}

// size returns how many tokens the bucket holds; b is locked.
func (b *budget) size() float64 {
	if b.part == 0 {
		return 0
	}
	return max(1, b.burst*b.part)
}

// setPart changes part.
func (b *budget) setPart(part float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.part = part
	b.tokens = min(b.tokens, b.size())
	b.serve(now)
}
