package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// told is what an upstream says, in the order of a history's codes.
type told uint8

const (
	answering told = iota // with an address
	denying               // NXDOMAIN
	lacking               // no such record
	empty                 // NOERROR and nothing else
	failing               // SERVFAIL
	refusing              // REFUSED
	cutting               // TC
	unheard               // an error
	local                 // an error that is nobody's
	tellings
)

// message is what t is on the wire, about name, with a TTL.
func (t told) message(name string, ttl int) message {
	switch t {
	case answering:
		return message{answer: []string{fmt.Sprintf("%s %d IN A 192.0.2.1", name, ttl)}}
	case denying:
		return message{rcode: dns.RcodeNameError, authority: []string{fmt.Sprintf("test. %d IN SOA a. b. 1 2 3 4 %d", ttl, ttl)}}
	case lacking:
		return message{authority: []string{fmt.Sprintf("test. %d IN SOA a. b. 1 2 3 4 %d", ttl, ttl)}}
	case failing:
		return message{rcode: dns.RcodeServerFailure}
	case refusing:
		return message{rcode: dns.RcodeRefused}
	case cutting:
		return message{tc: true, answer: []string{fmt.Sprintf("%s %d IN A 192.0.2.1", name, ttl)}}
	}
	return message{}
}

func (t told) rcode() int {
	switch t {
	case denying:
		return dns.RcodeNameError
	case refusing:
		return dns.RcodeRefused
	case failing, unheard:
		return dns.RcodeServerFailure
	}
	return dns.RcodeSuccess
}

// bad reports whether something old is better.
func (t told) bad() bool { return t >= failing }

// page is what a ledger knows of one name.
type page struct {
	what  told
	ends  time.Duration
	life  int
	rests bool
	until time.Duration // no client is to ask before, if rests
	hits  counter
	taken bool // somebody is to fetch it again
}

// ledger is the simplest cache there is: it has room for all, and nobody in it ever waits.
type ledger struct {
	cfg       *config.Cache
	pages     map[string]*page
	failures  int
	probe     time.Duration
	recovered time.Duration
}

func (l *ledger) usable(p *page, now time.Duration) bool {
	return now < p.ends+l.cfg.Stale.For && p.what != failing
}

func (l *ledger) claim() time.Duration { return max(refreshTimeout, l.cfg.Stale.Recheck) }

// answer says what the cache does with a query for name, and with which TTL.
func (l *ledger) answer(name string, now time.Duration) (found Found, what told, ttl int) {
	p := l.pages[name]
	switch {
	case p == nil:
	case now < p.ends:
		found, ttl = Hit, int((p.ends-now)/time.Second)
		if f := l.cfg.Prefetch; f.Amount > 0 && !p.taken {
			if p.hits.beat(now, f.Within) >= f.Amount && ttl <= (p.life*f.Percent+99)/100 {
				found, p.taken = Refresh, true
			}
		}
		if p.hits.last = now; l.cfg.KeepTTL {
			ttl = p.life
		}
		return found, p.what, ttl
	case l.usable(p, now):
		old := l.recovered != 0 && l.recovered >= p.until-l.claim()
		rests := p.rests && now < p.until && !old
		if rests && l.failures >= outageThreshold && now >= l.probe {
			l.probe, p.rests = now+probeInterval, true
			found, p.hits.last, p.until = Refresh, now, now+l.claim()
			return found, p.what, int(l.cfg.Stale.TTL / time.Second)
		}
		mode := l.cfg.Stale.Mode
		if rests || mode == config.StaleImmediate || mode == config.StaleFallback && p.rests {
			found, p.hits.last = Hit, now
			if !rests {
				found, p.rests, p.until = Refresh, true, now+l.claim()
			}
			return found, p.what, int(l.cfg.Stale.TTL / time.Second)
		}
	}
	parent := name[2:] // of a name of two labels that is the TLD, which nobody asks for
	if p := l.pages[parent]; l.cfg.NXDomainCut && p != nil && p.what == denying && now < p.ends {
		p.hits.last = now
		found, what, ttl = Hit, denying, int((p.ends-now)/time.Second)
		if l.cfg.KeepTTL {
			ttl = p.life
		}
	}
	return found, what, ttl
}

// keeps is for how long what is said of name is kept; 0 is not at all.
func (l *ledger) keeps(name string, what told, ttl int) int {
	disabled := func(limits config.CacheLimits) bool {
		return len(limits.Disabled) > 0 && dns.IsSubDomain("b.test.", name)
	}
	switch {
	case what == empty && !disabled(l.cfg.Success):
		return 5
	case what == answering && !disabled(l.cfg.Success), (what == denying || what == lacking) && !disabled(l.cfg.Denial):
		return ttl
	case (what == failing || what == unheard) && !disabled(l.cfg.Denial):
		return int(l.cfg.Servfail / time.Second)
	}
	return 0
}

// fetched takes down what came when name was asked for.
func (l *ledger) fetched(name string, what told, ttl int, now time.Duration, warm bool) {
	p := l.pages[name]
	alive := p != nil && now < p.ends
	life := l.keeps(name, what, ttl)
	if what == local {
		if alive {
			p.taken = false
		}
		return
	}
	bad := what.bad()
	holds := p != nil && (alive && p.what != failing || l.usable(p, now))
	if life > 0 && holds && (bad || l.cfg.Stale.PreferPositive && p.what == answering && what != answering) {
		life, bad = 0, true
	}
	if life > 0 {
		n := &page{what: what, ends: now + time.Duration(life)*time.Second, life: life, hits: counter{last: now}}
		if what == unheard {
			n.what = failing
		}
		if p != nil && warm {
			n.hits.hits = l.cfg.Prefetch.Amount
		}
		l.pages[name], p, alive = n, n, true
	}
	switch {
	case !bad:
		if l.failures >= outageThreshold {
			l.recovered = now
		}
		l.failures = 0
	case p != nil && alive:
		if p.taken {
			p.taken, p.hits.hits = false, l.cfg.Prefetch.Amount
		}
	case p != nil && l.usable(p, now):
		p.rests, p.until = true, now+l.cfg.Stale.Recheck
		l.failures++
	}
}

// configure reads a directive out of three bytes.
func configure(a, b, c byte) *config.Cache {
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

// FuzzHistory reads its input as a directive and a history of queries, flushes and
// passing time, and compares the cache with a ledger. No history is long enough to push
// anything out.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 8, 9, 16, 1, 24, 0x81})
	f.Add([]byte{1, 2, 3, 3, 4, 0x90, 3, 0xA0, 4, 5, 5})
	for mode := range byte(64) {
		// One name lives, expires, fails in all ways, is denied and flushed.
		f.Add([]byte{mode, mode, 0xA2, 0, 0, 0x85, 0, 0, 0x88, 0x20, 0x28, 0x30, 0x8A, 0x38, 0x40, 0, 0x9E, 0x20, 0x20, 8, 12, 0x87, 8, 0x7F, 0, 12, 0x84, 0x10, 0xBC, 0x18, 0x20, 0x20})
	}
	f.Fuzz(live)
}

// TestHistory lives through random histories, some that are always the same and some that
// never are.
func TestHistory(t *testing.T) {
	for i := range uint64(150) {
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
		live(t, history)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// historyRoom is enough for all names, and little enough for a look at all of it after
// each step.
const historyRoom = 64 << 10

// live goes through one history.
func live(t *testing.T, history []byte) {
	if len(history) < 3 {
		return
	}
	clock := newHand()
	inline := func(f func(context.Context)) bool {
		f(context.Background())
		return true
	}
	cfg := configure(history[0], history[1], history[2])
	c := NewStore(historyRoom, Options{Clock: clock.now, Go: inline}).NewCache(cfg)
	h := &comparison{t: t, c: c, clock: clock, ledger: &ledger{cfg: cfg, pages: make(map[string]*page)}}
	for i, b := range history[3:min(len(history), 200)] {
		switch {
		case b&0x80 != 0: // time passes, 0 to 127 s
			clock.advance(time.Duration(b&0x7F) * time.Second)
		case told(b>>3) < tellings:
			h.query(names[b&7], told(b>>3), 5+i%8)
		default:
			h.flush(names[b&7], b&8 != 0)
		}
		if i%8 == 0 {
			c.store.check(t)
		}
	}
	c.store.check(t)
}

// names are four, and one below each.
var names = [8]string{"a.test.", "b.test.", "c.test.", "d.test.", "x.a.test.", "x.b.test.", "x.c.test.", "x.d.test."}

// comparison is a cache and its ledger.
type comparison struct {
	t      *testing.T
	c      *Cache
	clock  *hand
	ledger *ledger
}

func (h *comparison) flush(name string, subtree bool) {
	want := 0
	for n := range h.ledger.pages {
		if n == name || subtree && dns.IsSubDomain(name, n) {
			delete(h.ledger.pages, n)
			want++
		}
	}
	if n := h.c.Flush([]byte(wireName(h.t, name)), subtree); n != want {
		h.t.Fatalf("flushing %s: %d, want %d", name, n, want)
	}
}

// query asks both for name, of which an upstream says what, if it is asked.
func (h *comparison) query(name string, what told, ttl int) {
	now := h.clock.now()
	q := question(h.t, name, dns.TypeA)
	asks := 0
	ask := func(context.Context, *wire.Query) (wire.Response, error) {
		asks++
		switch what {
		case unheard:
			return wire.Response{}, errUpstream
		case local:
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
	if r = reply(q); found != Miss && ttl%2 == 0 { // Fetch alone does all of it
		if hit, err := h.c.Fetch(h.t.Context(), q, r, ask); !hit || err != nil {
			h.t.Fatalf("%s: hit %v, error %v", name, hit, err)
		}
		h.compare(name, r, has, left)
		if found == Refresh {
			h.ledger.fetched(name, what, ttl, now, true)
		}
		if found == Refresh && asks != 1 || found == Hit && asks != 0 {
			h.t.Fatalf("%s: %d asks", name, asks)
		}
		return
	}
	if got := lookup(h.c, q, r, now); got != found {
		h.t.Fatalf("%s: found %d, want %d", name, got, found)
	}
	switch found {
	case Hit:
		h.compare(name, r, has, left)
		return
	case Refresh:
		h.compare(name, r, has, left)
		h.c.Refresh(q, ask)
		h.ledger.fetched(name, what, ttl, now, true)
	case Miss:
		h.fetch(name, r, ask, what, ttl)
	}
	if asks != 1 {
		h.t.Fatalf("%s: %d asks", name, asks)
	}
}

// fetch is a query that both miss.
func (h *comparison) fetch(name string, r *wire.Reply, ask ExchangeFunc, what told, ttl int) {
	l, now := h.ledger, h.clock.now()
	q := question(h.t, name, dns.TypeA)
	r.Start(nil, q)
	_, err := h.c.Fetch(h.t.Context(), q, r, ask)
	p := l.pages[name]
	if p != nil && l.usable(p, now) && (what.bad() || l.cfg.Stale.PreferPositive && p.what == answering && what != answering) {
		if err != nil {
			h.t.Fatalf("%s: error %v, and there is an answer", name, err)
		}
		h.compare(name, r, p.what, int(l.cfg.Stale.TTL/time.Second))
	} else if failed := what == unheard || what == local; failed != (err != nil) {
		h.t.Fatalf("%s: error %v", name, err)
	} else if !failed {
		h.compare(name, r, what, ttl)
	} else if !errors.Is(err, errUpstream) && !errors.Is(err, ErrLocal) {
		h.t.Fatalf("%s: error %v", name, err)
	}
	l.fetched(name, what, ttl, now, false)
}

func (h *comparison) compare(name string, r *wire.Reply, what told, ttl int) {
	m := sent(h.t, r)
	if m.Rcode != what.rcode() || (len(m.Answer) > 0) != (what == answering || what == cutting) {
		h.t.Fatalf("%s: got\n%s\nwant what %d says", name, m, what)
	}
	for _, n := range ttls(m) {
		if int(n) != ttl {
			h.t.Fatalf("%s: TTL %d, want %d", name, n, ttl)
		}
	}
}
