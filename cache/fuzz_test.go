// Inside the package: it checks the store's invariants after each step.

package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/soak"
)

// upstreamReply is a kind of upstream reply. The order is that of the codes in a fuzz history.
type upstreamReply uint8

const (
	repliesAddress       upstreamReply = iota // with an address
	repliesNXDomain                           // NXDOMAIN
	repliesNoData                             // NODATA
	repliesEmpty                              // NOERROR without records
	repliesServFail                           // SERVFAIL
	repliesRefused                            // REFUSED
	repliesTruncated                          // TC
	exchangeFails                             // an error
	exchangeFailsLocally                      // ErrLocal
	replyKinds
)

// message returns the reply about name, with a TTL in seconds.
func (t upstreamReply) message(name string, ttl int) message {
	switch t {
	case repliesAddress:
		return message{answer: []string{fmt.Sprintf("%s %d IN A 192.0.2.1", name, ttl)}}
	case repliesNXDomain:
		return message{rcode: dns.RcodeNameError, authority: []string{fmt.Sprintf("test. %d IN SOA a. b. 1 2 3 4 %d", ttl, ttl)}}
	case repliesNoData:
		return message{authority: []string{fmt.Sprintf("test. %d IN SOA a. b. 1 2 3 4 %d", ttl, ttl)}}
	case repliesServFail:
		return message{rcode: dns.RcodeServerFailure}
	case repliesRefused:
		return message{rcode: dns.RcodeRefused}
	case repliesTruncated:
		return message{tc: true, answer: []string{fmt.Sprintf("%s %d IN A 192.0.2.1", name, ttl)}}
	}
	return message{}
}

func (t upstreamReply) rcode() int {
	switch t {
	case repliesNXDomain:
		return dns.RcodeNameError
	case repliesRefused:
		return dns.RcodeRefused
	case repliesServFail, exchangeFails:
		return dns.RcodeServerFailure
	}
	return dns.RcodeSuccess
}

// prefersStale reports whether an expired answer is better than the reply.
func (t upstreamReply) prefersStale() bool { return t >= repliesServFail }

// modelRecord is the model's entry for a name.
type modelRecord struct {
	reply      upstreamReply
	expires    time.Duration
	life       int
	backsOff   bool
	until      time.Duration // no refresh before this time, if backsOff
	hits       hitCounter
	refreshing bool // a client was told to refresh it
}

// cacheModel is a simple model of the cache: one client at a time, no limits.
type cacheModel struct {
	cfg       *config.Cache
	records   map[string]*modelRecord
	failures  map[string]bool // the domains
	probe     time.Duration
	recovered time.Duration
}

func (l *cacheModel) servable(p *modelRecord, now time.Duration) bool {
	return now < p.expires+l.cfg.Stale.For && p.reply != repliesServFail
}

func (l *cacheModel) claimTime() time.Duration { return max(refreshTimeout, l.cfg.Stale.Recheck) }

// answer returns the outcome of a query for name, the reply and its TTL in seconds.
func (l *cacheModel) answer(name string, now time.Duration) (found outcome, what upstreamReply, ttl int) {
	p := l.records[name]
	switch {
	case p == nil:
	case now < p.expires:
		found, ttl = answered, int((p.expires-now)/time.Second)
		if f := l.cfg.Prefetch; f.Amount > 0 && !p.refreshing {
			if p.hits.count(now, f.Within) >= f.Amount && ttl <= (p.life*f.Percent+99)/100 {
				found, p.refreshing = needsRefresh, true
			}
		}
		if p.hits.last = now; l.cfg.KeepTTL {
			ttl = p.life
		}
		return found, p.reply, ttl
	case l.servable(p, now):
		old := l.recovered != 0 && l.recovered >= p.until-l.claimTime()
		rests := p.backsOff && now < p.until && !old
		if rests && len(l.failures) >= outageThreshold && now >= l.probe {
			l.probe, p.backsOff = now+probeInterval, true
			found, p.hits.last, p.until = needsRefresh, now, now+l.claimTime()
			return found, p.reply, int(l.cfg.Stale.TTL / time.Second)
		}
		mode := l.cfg.Stale.Mode
		if rests || mode == config.StaleImmediate || mode == config.StaleFallback && p.backsOff {
			found, p.hits.last = answered, now
			if !rests {
				found, p.backsOff, p.until = needsRefresh, true, now+l.claimTime()
			}
			return found, p.reply, int(l.cfg.Stale.TTL / time.Second)
		}
	}
	parent := name[2:] // of a name of two labels: the TLD, which has no record
	if p := l.records[parent]; l.cfg.NXDomainCut && p != nil && p.reply == repliesNXDomain && now < p.expires && !l.exists(parent) {
		p.hits.last = now
		found, what, ttl = answered, repliesNXDomain, int((p.expires-now)/time.Second)
		if l.cfg.KeepTTL {
			ttl = p.life
		}
	}
	return found, what, ttl
}

// exists reports whether a name at or below name is cached that exists.
func (l *cacheModel) exists(name string) bool {
	for n, r := range l.records {
		if dns.IsSubDomain(name, n) && (r.reply == repliesAddress || r.reply == repliesNoData || r.reply == repliesEmpty) {
			return true
		}
	}
	return false
}

// cacheTTL returns the time in seconds for which a reply is cached; 0 means that it is not.
func (l *cacheModel) cacheTTL(name string, what upstreamReply, ttl int) int {
	disabled := func(limits config.CacheLimits) bool {
		return len(limits.Disabled) > 0 && dns.IsSubDomain("b.test.", name)
	}
	switch {
	case what == repliesEmpty && !disabled(l.cfg.Success):
		return 5
	case what == repliesAddress && !disabled(l.cfg.Success), (what == repliesNXDomain || what == repliesNoData) && !disabled(l.cfg.Denial):
		return ttl
	case (what == repliesServFail || what == exchangeFails) && !disabled(l.cfg.Denial):
		return int(l.cfg.Servfail / time.Second)
	}
	return 0
}

// store records the result of an exchange for name.
func (l *cacheModel) store(name string, what upstreamReply, ttl int, now time.Duration, warm bool) {
	p := l.records[name]
	alive := p != nil && now < p.expires
	life := l.cacheTTL(name, what, ttl)
	if what == exchangeFailsLocally {
		if alive {
			p.refreshing = false
		}
		return
	}
	bad, labels := what.prefersStale(), dns.SplitDomainName(name)
	holds := p != nil && (alive && p.reply != repliesServFail || l.servable(p, now))
	if life > 0 && holds && (bad || l.cfg.Stale.PreferPositive && p.reply == repliesAddress && what != repliesAddress) {
		life, bad = 0, true
	}
	if life > 0 {
		n := &modelRecord{reply: what, expires: now + time.Duration(life)*time.Second, life: life, hits: hitCounter{last: now}}
		if what == exchangeFails {
			n.reply = repliesServFail
		}
		if p != nil && warm {
			n.hits.hits = l.cfg.Prefetch.Amount
		}
		l.records[name], p, alive = n, n, true
	}
	switch {
	case !bad:
		l.endOutage(now)
	case p != nil && alive:
		if p.refreshing {
			p.refreshing, p.hits.hits = false, l.cfg.Prefetch.Amount
		}
	case p != nil && l.servable(p, now):
		p.backsOff, p.until = true, now+l.cfg.Stale.Recheck
		if what == exchangeFails && len(l.failures) < outageThreshold {
			l.failures[strings.Join(labels[max(len(labels)-2, 1):], ".")] = true
		}
	}
	if bad && what != exchangeFails {
		l.endOutage(now)
	}
}

func (l *cacheModel) endOutage(now time.Duration) {
	if len(l.failures) >= outageThreshold {
		l.recovered = now
	}
	clear(l.failures)
}

// configFromBytes derives a directive from three bytes.
func configFromBytes(a, b, c byte) *config.Cache {
	cfg := defaults()
	cfg.Success.MinTTL, cfg.Denial.MinTTL = 0, 0
	if a&1 != 0 {
		cfg.Stale = []config.Stale{fallback, immediate, verify, fallback}[a>>1&3]
		cfg.Stale.For = time.Minute
		cfg.Stale.Recheck = time.Duration(a>>3&3) * 7 * time.Second
		cfg.Stale.PreferPositive = a&0x20 != 0
	}
	cfg.KeepTTL, cfg.NXDomainCut = b&1 != 0, b&2 != 0
	if b&4 != 0 {
		cfg.Denial.Disabled = []wire.Name{"\x01b\x04test\x00"}
	}
	if b&8 != 0 {
		cfg.Success.Disabled = []wire.Name{"\x01b\x04test\x00"}
	}
	// Half a second more: at whole ones, ticks may fall on either side.
	within := time.Duration(1+c>>2&7)*time.Second + time.Second/2
	cfg.Prefetch = config.Prefetch{Amount: int(c & 3), Within: within, Percent: 10 + int(c>>5)*10}
	return cfg
}

// FuzzHistory reads its input as a directive and a history of queries, flushes and time steps,
// and compares the cache with the model. A history is too short to evict entries.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 8, 9, 16, 1, 24, 0x81})
	f.Add([]byte{1, 2, 3, 3, 4, 0x90, 3, 0xA0, 4, 5, 5})
	for mode := range byte(64) {
		// One name lives, expires, fails in all ways, is denied and flushed.
		f.Add([]byte{mode, mode, 0xA2, 0, 0, 0x85, 0, 0, 0x88, 0x20, 0x28, 0x30, 0x8A, 0x38, 0x40, 0, 0x9E, 0x20, 0x20, 8, 12, 0x87, 8, 0x7F, 0, 12, 0x84, 0x10, 0xBC, 0x18, 0x20, 0x20})
	}
	f.Fuzz(runHistory)
}

// TestHistory runs random histories: half of them with fixed seeds.
func TestHistory(t *testing.T) {
	histories := soak.Choose(50, 150)
	if testing.Short() {
		histories = 15
	}
	for i := range uint64(histories) {
		seed := i
		if i%2 == 1 {
			seed = rand.Uint64()
		}
		rng := rand.New(rand.NewPCG(seed, 3))
		history := make([]byte, 200)
		for j := range history {
			history[j] = byte(rng.Uint32())
			if j > 3 && rng.IntN(3) > 0 { // the same name again
				history[j] = history[j]&0x78 | history[j-1]&7
			}
			if history[j]&0x80 != 0 { // a little later
				history[j] = 0x80 | byte(1+rng.IntN(1+rng.IntN(1+rng.IntN(70))))
			}
		}
		runHistory(t, history)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// fuzzBudget is enough for all names. It is small, so that checking the whole store after a
// step is cheap.
const fuzzBudget = 64 << 10

// runHistory runs one history on a cache and its model.
func runHistory(t *testing.T, history []byte) {
	if len(history) < 3 {
		return
	}
	clock := newManualClock()
	inline := func(f func(context.Context)) bool {
		f(context.Background())
		return true
	}
	cfg := configFromBytes(history[0], history[1], history[2])
	c := NewStore(fuzzBudget, Options{Clock: clock.now, Go: inline}).NewCache(cfg)
	h := &comparison{t: t, c: c, clock: clock, ledger: &cacheModel{cfg: cfg, records: make(map[string]*modelRecord), failures: make(map[string]bool)}}
	for i, b := range history[3:min(len(history), 200)] {
		switch {
		case b&0x80 != 0: // time passes, 0 to 127 s
			clock.advance(time.Duration(b&0x7F) * time.Second)
		case upstreamReply(b>>3) < replyKinds:
			h.query(names[b&7], upstreamReply(b>>3), 5+i%8)
		default:
			h.flush(names[b&7], b&8 != 0)
		}
		if i%8 == 0 {
			c.store.check(t)
		}
	}
	c.store.check(t)
}

// names are four names and one name below each.
var names = [8]string{"a.test.", "b.test.", "c.test.", "d.test.", "x.a.test.", "x.b.test.", "x.c.test.", "x.d.test."}

// comparison is a cache and its model.
type comparison struct {
	t      *testing.T
	c      *Cache
	clock  *manualClock
	ledger *cacheModel
}

func (h *comparison) flush(name string, subtree bool) {
	want := 0
	for n, r := range h.ledger.records {
		cuts := h.ledger.cfg.NXDomainCut && r.reply == repliesNXDomain && dns.IsSubDomain(n, name)
		if n == name || subtree && dns.IsSubDomain(name, n) || cuts {
			delete(h.ledger.records, n)
			want++
		}
	}
	if n := h.c.Flush([]byte(wireName(h.t, name)), subtree); n != want {
		h.t.Fatalf("flushing %s: %d, want %d", name, n, want)
	}
}

// query queries the cache and the model for name. reply is the upstream's reply if an exchange
// runs.
func (h *comparison) query(name string, what upstreamReply, ttl int) {
	now := h.clock.now()
	q := question(h.t, name, dns.TypeA)
	asks := 0
	ask := func(context.Context, *wire.Query) (wire.Response, error) {
		asks++
		switch what {
		case exchangeFails:
			return wire.Response{}, errUpstream
		case exchangeFailsLocally:
			return wire.Response{}, ErrLocal
		}
		return response(h.t, q, what.message(name, ttl)), nil
	}
	found, has, left := h.ledger.answer(name, now)
	r := reply(q)
	before := h.c.Stats()
	h.c.Get(q, r, now) // leaves nothing behind
	if diff := cmp.Diff(before, h.c.Stats()); diff != "" {
		h.t.Fatalf("%s: Get changed the stats:\n%s", name, diff)
	}
	if r = reply(q); found != missed && ttl%2 == 0 { // Fetch without a Get before it
		if hit, err := h.c.Fetch(h.t.Context(), q, r, ask); !hit || err != nil {
			h.t.Fatalf("%s: hit %v, error %v", name, hit, err)
		}
		h.compare(name, r, has, left)
		if found == needsRefresh {
			h.ledger.store(name, what, ttl, now, true)
		}
		if found == needsRefresh && asks != 1 || found == answered && asks != 0 {
			h.t.Fatalf("%s: %d asks", name, asks)
		}
		return
	}
	if got := lookup(h.c, q, r, now); got != found {
		h.t.Fatalf("%s: found %d, want %d", name, got, found)
	}
	switch found {
	case answered:
		h.compare(name, r, has, left)
		return
	case needsRefresh:
		h.compare(name, r, has, left)
		h.c.Refresh(q, ask)
		h.ledger.store(name, what, ttl, now, true)
	case missed:
		h.fetch(name, r, ask, what, ttl)
	}
	if asks != 1 {
		h.t.Fatalf("%s: %d asks", name, asks)
	}
}

// fetch is a query that both miss.
func (h *comparison) fetch(name string, r *wire.Reply, ask ExchangeFunc, what upstreamReply, ttl int) {
	l, now := h.ledger, h.clock.now()
	q := question(h.t, name, dns.TypeA)
	r.Start(nil, q)
	_, err := h.c.Fetch(h.t.Context(), q, r, ask)
	p := l.records[name]
	if p != nil && l.servable(p, now) && (what.prefersStale() || l.cfg.Stale.PreferPositive && p.reply == repliesAddress && what != repliesAddress) {
		if err != nil {
			h.t.Fatalf("%s: error %v, and there is an answer", name, err)
		}
		h.compare(name, r, p.reply, int(l.cfg.Stale.TTL/time.Second))
	} else if failed := what == exchangeFails || what == exchangeFailsLocally; failed != (err != nil) {
		h.t.Fatalf("%s: error %v", name, err)
	} else if !failed {
		h.compare(name, r, what, ttl)
	} else if !errors.Is(err, errUpstream) && !errors.Is(err, ErrLocal) {
		h.t.Fatalf("%s: error %v", name, err)
	}
	l.store(name, what, ttl, now, false)
}

func (h *comparison) compare(name string, r *wire.Reply, what upstreamReply, ttl int) {
	m := replyMsg(h.t, r)
	if m.Rcode != what.rcode() || (len(m.Answer) > 0) != (what == repliesAddress || what == repliesTruncated) {
		h.t.Fatalf("%s: got\n%s\nwant what %d says", name, m, what)
	}
	for _, n := range ttls(m) {
		if int(n) != ttl {
			h.t.Fatalf("%s: TTL %d, want %d", name, n, ttl)
		}
	}
}
