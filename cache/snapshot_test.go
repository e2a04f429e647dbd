// Inside the package: it builds single chunks and sets the clocks of reader and writer.

package cache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/soak"
)

// snapshotClock holds the manual clocks for writing and reading snapshots.
type snapshotClock struct{ timestamp }

func newSnapshotClock() *snapshotClock {
	o := &snapshotClock{timestamp{up: time.Hour, wall: 1 << 60}}
	copy(o.boot[:], "the first start of this machine, 0001")
	return o
}

func (o *snapshotClock) bootClock() *bootClock {
	return &bootClock{now: func() timestamp { return o.timestamp }}
}

func (o *snapshotClock) advance(d time.Duration) {
	o.up += d
	o.wall += int64(d)
}

func (o *snapshotClock) write(t testing.TB, caches map[string]*Cache) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := newWriter(&b, o.bootClock()).write(t.Context(), caches); err != nil {
		t.Fatalf("writing: %v", err)
	}
	return b.Bytes()
}

func (o *snapshotClock) read(t testing.TB, stream []byte, caches map[string]*Cache) (int, error) {
	t.Helper()
	in := reader{chunkReader: chunkReader{r: bytes.NewReader(stream)}, clock: o.bootClock(), caches: caches}
	_, err := in.read(t.Context())
	return in.stored, err
}

// transfer writes c's snapshot, reads it into d, and returns the number of entries stored.
func (o *snapshotClock) transfer(t testing.TB, c, d *Cache) int {
	t.Helper()
	n, err := o.read(t, o.write(t, map[string]*Cache{"c": c}), map[string]*Cache{"c": d})
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	d.store.check(t)
	return n
}

// TestSnapshotRoundTrip fills a cache in a random hour and transfers it to a cache with another
// clock. Both must give the same answers until all entries have expired.
func TestSnapshotRoundTrip(t *testing.T) {
	seeds := soak.Choose(6, 20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		clock, other := newManualClock(), &manualClock{t: time.Duration(rng.Int64N(int64(time.Minute)))}
		cfg := defaults()
		if seed%2 == 1 {
			cfg.Stale = fallback
			cfg.Stale.For = time.Duration(rng.IntN(600)) * time.Second
		}
		cfg.KeepTTL, cfg.NXDomainCut = seed%3 == 0, seed%5 > 1
		c, d := newCache(cfg, Options{Clock: clock.now}), newCache(cfg, Options{Clock: other.now})
		queries := populate(t, rng, c, clock)
		office := newSnapshotClock()
		stream := office.write(t, map[string]*Cache{"a": c})
		late := time.Duration(rng.IntN(3)) * 700 * time.Millisecond
		office.advance(late)
		clock.advance(late)
		n, err := office.read(t, stream, map[string]*Cache{"a": d})
		if err != nil || n == 0 {
			t.Fatalf("seed %d: %d answers, error %v", seed, n, err)
		}
		d.store.check(t)
		for step := range 6 {
			for _, q := range queries {
				was, is := answer(t, c, q), answer(t, d, q)
				if cfg.NXDomainCut && was == nil {
					continue // an expired entry, which is not moved, may be the proof that a name above exists
				}
				if diff := cmp.Diff(text(was), text(is)); diff != "" {
					t.Fatalf("seed %d, step %d: moved, it answers otherwise:\n%s", seed, step, diff)
				}
			}
			by := time.Duration(rng.IntN(400<<step)) * time.Second / 4
			clock.advance(by)
			other.advance(by)
		}
		if a, b := c.cuts.Load(), d.cuts.Load(); b > a || a > 0 && !cfg.NXDomainCut {
			t.Errorf("seed %d: %d cuts became %d", seed, a, b)
		}
	}
}

// populate queries c for names of all kinds in a random hour.
func populate(t testing.TB, rng *rand.Rand, c *Cache, clock *manualClock) (queries []*wire.Query) {
	t.Helper()
	for i := range 400 {
		name := fmt.Sprintf("N%d.test.", rng.IntN(300))
		if rng.IntN(4) == 0 {
			name = "x." + name
		}
		var shape []func(*dns.Msg)
		for _, f := range []func(*dns.Msg){do, cd} {
			if rng.IntN(6) == 0 {
				shape = append(shape, f)
			}
		}
		q := question(t, name, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeMX}[rng.IntN(3)], shape...)
		m := upstreamReply(rng.IntN(int(exchangeFails))).message(name, 1+rng.IntN(900))
		if q.Type == dns.TypeMX && m.answer != nil {
			m.answer = []string{name + " 60 IN MX 10 mx." + name, name + " 70 IN MX 20 MX2.other."}
			m.additional = []string{"mx2.other. 30 IN AAAA 2001:db8::1"}
		}
		m.compression = i%2 == 0
		if r := reply(q); lookup(c, q, r, clock.now()) == missed {
			resp := response(t, q, m)
			noError(t, fetchErr(c.Fetch(t.Context(), q, r, returns(resp))))
		}
		queries = append(queries, q)
		clock.advance(time.Duration(rng.IntN(18)) * time.Second / 2)
	}
	return queries
}

func text(m *dns.Msg) string {
	if m == nil {
		return "a miss"
	}
	m.Id = 0
	return m.String()
}

// TestSnapshotKeepsRecentlyUsed: if the reader holds fewer entries, it keeps those used last.
func TestSnapshotKeepsRecentlyUsed(t *testing.T) {
	const most, room = 400, 100
	clock, rng := newManualClock(), rand.New(rand.NewPCG(7, 7))
	c := newCache(nil, Options{Clock: clock.now})
	queries := make([]*wire.Query, most)
	for i := range queries {
		name := fmt.Sprintf("n%d.test.", i)
		queries[i] = question(t, name, dns.TypeA)
		fetch(t, c, queries[i], message{answer: []string{name + " 3600 IN A 192.0.2.1"}})
	}
	order := rng.Perm(most)
	for _, i := range order {
		clock.advance(time.Millisecond)
		answer(t, c, queries[i])
	}
	cfg := defaults()
	cfg.Success.Entries, cfg.Denial.Entries = room, 0 // in one shard
	d := newCache(cfg, Options{})
	if n := newSnapshotClock().transfer(t, c, d); n != most {
		t.Errorf("%d answers came, want %d", n, most)
	}
	for at, i := range order {
		if got, want := answer(t, d, queries[i]) != nil, at >= most-room; got != want {
			t.Errorf("answer used as number %d of %d: there %v, want %v", at, most, got, want)
		}
	}
}

// TestSnapshotFollowsDirective: the reader applies its own directive to the entries.
func TestSnapshotFollowsDirective(t *testing.T) {
	const www = "www.example."
	positive := message{answer: []string{www + " 300 IN A 192.0.2.1"}}
	denied := message{rcode: dns.RcodeNameError, authority: soaRecord(300, 300)}
	for _, tt := range []struct {
		name  string
		from  message
		shape func(*config.Cache)
		age   time.Duration // age of the entry when it is written
		late  time.Duration // time until it is read
		ttl   uint32        // TTL after the transfer; 0 means a miss
	}{
		{name: "as it is", from: positive, ttl: 300},
		{name: "aged", from: positive, age: 100 * time.Second, ttl: 200},
		{name: "late", from: positive, age: 100 * time.Second, late: 50 * time.Second, ttl: 150},
		{name: "too late", from: positive, age: 100 * time.Second, late: 200 * time.Second},
		{name: "shorter here", from: positive, age: 100 * time.Second, shape: func(c *config.Cache) { c.Success.MaxTTL = 110 * time.Second }, ttl: 10},
		{name: "too short here", from: positive, age: 100 * time.Second, shape: func(c *config.Cache) { c.Success.MaxTTL = 100 * time.Second }},
		{name: "longer here", from: positive, age: 100 * time.Second, shape: func(c *config.Cache) { c.Success.MinTTL = time.Hour }, ttl: 200},
		{name: "no room", from: positive, shape: func(c *config.Cache) { c.Success.Entries = 0 }},
		{name: "other list full", from: positive, shape: func(c *config.Cache) { c.Denial.Entries = 0 }, ttl: 300},
		{name: "disabled", from: positive, shape: func(c *config.Cache) { c.Success.Disabled = []wire.Name{wireName(t, "example.")} }},
		{name: "disabled for others", from: positive, shape: func(c *config.Cache) { c.Denial.Disabled = []wire.Name{wireName(t, "example.")} }, ttl: 300},
		{name: "other zone", from: positive, shape: func(c *config.Cache) { c.Zones = []wire.Name{wireName(t, "test.")} }},
		{name: "own zone", from: positive, shape: func(c *config.Cache) { c.Zones = []wire.Name{wireName(t, "example.")} }, ttl: 300},
		{name: "kept TTL", from: positive, age: 100 * time.Second, shape: func(c *config.Cache) { c.KeepTTL = true }, ttl: 300},
		{name: "denial", from: denied, age: 10 * time.Second, ttl: 290},
		{name: "denial disabled", from: denied, shape: func(c *config.Cache) { c.Denial.Disabled = []wire.Name{wire.Root} }},
		{name: "failure", from: message{rcode: dns.RcodeServerFailure}, age: time.Second, ttl: 1},
		{name: "failure not kept here", from: message{rcode: dns.RcodeServerFailure}, shape: func(c *config.Cache) { c.Servfail = 0 }},
		{name: "expired", from: positive, age: 400 * time.Second},
		{name: "expired, and given here", from: positive, age: 400 * time.Second, shape: staleImmediate(101 * time.Second), ttl: 30},
		{name: "expired for too long", from: positive, age: 400 * time.Second, shape: staleImmediate(100 * time.Second)},
		{name: "expired on the way", from: positive, age: 299 * time.Second, late: 2 * time.Second, shape: staleImmediate(time.Minute), ttl: 30},
	} {
		clock, office, cfg := newManualClock(), newSnapshotClock(), defaults()
		from := defaults()
		from.Stale.For, from.Stale.TTL = time.Hour, 30*time.Second // otherwise expired entries are not written
		c := newCache(from, Options{Clock: clock.now})
		q := question(t, www, dns.TypeA)
		fetch(t, c, q, tt.from)
		clock.advance(tt.age)
		stream := office.write(t, map[string]*Cache{"c": c})
		office.advance(tt.late)
		if tt.shape != nil {
			tt.shape(cfg)
		}
		d := newCache(cfg, Options{})
		if _, err := office.read(t, stream, map[string]*Cache{"c": d}); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		d.store.check(t)
		var ttl uint32
		if m := answer(t, d, q); m != nil {
			ttl = 1
			if all := ttls(m); len(all) > 0 {
				ttl = all[0]
			}
		}
		if ttl != tt.ttl {
			t.Errorf("%s: TTL %d, want %d", tt.name, ttl, tt.ttl)
		}
	}
}

// staleImmediate sets serve_stale with mode immediate for the given time.
func staleImmediate(until time.Duration) func(*config.Cache) {
	return func(c *config.Cache) {
		c.Stale = immediate
		c.Stale.For, c.Stale.TTL = until, 30*time.Second
	}
}

// TestSnapshotNXDomainCut: a denial still denies the names below it, if the reading cache has
// nxdomain_cut.
func TestSnapshotNXDomainCut(t *testing.T) {
	for _, from := range []bool{false, true} {
		for _, to := range []bool{false, true} {
			cfg, here := defaults(), defaults()
			cfg.NXDomainCut, here.NXDomainCut = from, to
			c, d := newCache(cfg, Options{}), newCache(here, Options{})
			fetch(t, c, question(t, "x.example.", dns.TypeA), message{rcode: dns.RcodeNameError, authority: soaRecord(300, 300)})
			fetch(t, c, question(t, "_y.example.", dns.TypeA), message{rcode: dns.RcodeNameError, authority: soaRecord(300, 300)})
			if n := newSnapshotClock().transfer(t, c, d); n != 2 {
				t.Fatalf("%d answers moved, want 2", n)
			}
			if got := answer(t, d, question(t, "a.x.example.", dns.TypeTXT)) != nil; got != to {
				t.Errorf("from %v to %v: a name below is denied: %v", from, to, got)
			}
			if n := d.cuts.Load(); (n == 1) != to || n > 1 {
				t.Errorf("from %v to %v: %d cuts", from, to, n)
			}
		}
	}
}

// TestSnapshotBackoff: a name in backoff stays in backoff after the transfer, and no longer
// than before.
func TestSnapshotBackoff(t *testing.T) {
	cfg := defaults()
	cfg.Stale = fallback
	cfg.Stale.For, cfg.Stale.Recheck, cfg.Stale.TTL = time.Hour, 20*time.Second, 30*time.Second
	cfg.Stale.ClientTimeout = 0
	clock, other := newManualClock(), &manualClock{t: time.Second}
	c, d := newCache(cfg, Options{Clock: clock.now}), newCache(cfg, Options{Clock: other.now})
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{addr}})
	clock.advance(400 * time.Second)
	if _, err := c.Fetch(t.Context(), q, reply(q), func(context.Context, *wire.Query) (wire.Response, error) {
		return wire.Response{}, errUpstream
	}); err != nil {
		t.Fatalf("the expired answer is not given: %v", err)
	}
	clock.advance(2 * time.Second)
	office := newSnapshotClock()
	stream := office.write(t, map[string]*Cache{"c": c})
	office.advance(3 * time.Second)
	if n, err := office.read(t, stream, map[string]*Cache{"c": d}); n != 1 || err != nil {
		t.Fatalf("%d answers moved, want 1; error %v", n, err)
	}
	for range 2 {
		if found := lookup(d, q, reply(q), other.now()); found != answered {
			t.Errorf("while it rests: found %d, want a hit", found)
		}
		other.advance(13 * time.Second) // 15 are left, of which the first may have begun
	}
	other.advance(-10 * time.Second)
	if found := lookup(d, q, reply(q), other.now()); found != needsRefresh {
		t.Errorf("after its rest: found %d, want a refresh", found)
	}
}

// TestSnapshotDoesNotReplaceFresher: an entry of the reading cache stays if it is better than
// the snapshot's.
func TestSnapshotDoesNotReplaceFresher(t *testing.T) {
	old := message{answer: []string{"www.example. 900 IN A 192.0.2.1"}}
	failed := message{rcode: dns.RcodeServerFailure}
	fresh := message{answer: []string{"www.example. 60 IN A 192.0.2.2"}}
	for _, tt := range []struct {
		name  string
		here  message
		comes message
		age   time.Duration // of what comes, when what is here came
		after time.Duration // from then to the move
		takes bool
	}{
		{"fresher, though shorter", fresh, old, 10 * time.Second, 0, false},
		{"of the same time", old, old, 0, 0, false},
		{"older", old, fresh, -20 * time.Second, 0, true},
		{"a failure", failed, old, 10 * time.Second, 0, true},
		{"by a failure", old, failed, -2 * time.Second, 0, false},
		{"an ended one by a failure", fresh, failed, -70 * time.Second, 0, true},
	} {
		clock := newManualClock()
		c, d := newCache(nil, Options{Clock: clock.now}), newCache(nil, Options{Clock: clock.now})
		q := question(t, "www.example.", dns.TypeA)
		if tt.age >= 0 {
			fetch(t, c, q, tt.comes)
			clock.advance(tt.age)
			fetch(t, d, q, tt.here)
		} else {
			fetch(t, d, q, tt.here)
			clock.advance(-tt.age)
			fetch(t, c, q, tt.comes)
		}
		if took := newSnapshotClock().transfer(t, c, d) == 1; took != tt.takes {
			t.Errorf("%s: taken %v, want %v", tt.name, took, tt.takes)
		}
	}
}

// TestSnapshotExpiredInBackoff: an expired entry in backoff stays if the snapshot's has
// expired, too; a live one replaces it.
func TestSnapshotExpiredInBackoff(t *testing.T) {
	cfg := defaults()
	cfg.Stale = fallback
	cfg.Stale.ClientTimeout = 0
	for _, tt := range []struct {
		name  string
		age   time.Duration // of what comes
		takes bool
	}{{"ended", 301 * time.Second, false}, {"alive", 299 * time.Second, true}} {
		clock := newManualClock()
		c, d := newCache(cfg, Options{Clock: clock.now}), newCache(cfg, Options{Clock: clock.now})
		q := question(t, "www.example.", dns.TypeA)
		fetch(t, d, q, message{answer: []string{"www.example. 60 IN A 192.0.2.1"}})
		clock.advance(100 * time.Second)
		if _, err := d.Fetch(t.Context(), q, reply(q), func(context.Context, *wire.Query) (wire.Response, error) {
			return wire.Response{}, errUpstream
		}); err != nil {
			t.Fatalf("the expired answer is not given: %v", err)
		}
		fetch(t, c, q, message{answer: []string{addr}})
		clock.advance(tt.age)
		if took := newSnapshotClock().transfer(t, c, d) == 1; took != tt.takes {
			t.Errorf("%s: taken %v, want %v", tt.name, took, tt.takes)
		}
	}
}

// TestSnapshotFailureKeepsExpired: a failure in the snapshot does not replace an expired answer that
// may still be served.
func TestSnapshotFailureKeepsExpired(t *testing.T) {
	cfg := defaults()
	cfg.Stale = fallback
	cfg.Stale.For = time.Hour
	for age, takes := range map[time.Duration]bool{299 * time.Second: false, 301 * time.Second: false, 3901 * time.Second: true} {
		clock := newManualClock()
		c, d := newCache(cfg, Options{Clock: clock.now}), newCache(cfg, Options{Clock: clock.now})
		q := question(t, "www.example.", dns.TypeA)
		fetch(t, d, q, message{answer: []string{addr}}) // for 300 s
		clock.advance(age)
		fetch(t, c, q, message{rcode: dns.RcodeServerFailure})
		if took := newSnapshotClock().transfer(t, c, d) == 1; took != takes {
			t.Errorf("after %v: the failure is taken: %t, want %t", age, took, takes)
		}
	}
}

// TestSnapshotLongestTTL: an entry that lives for longer than a snapshot can say is moved, too.
func TestSnapshotLongestTTL(t *testing.T) {
	cfg := defaults()
	cfg.Success.MaxTTL = 2 * maxRemaining
	clock := newManualClock()
	c, d := newCache(cfg, Options{Clock: clock.now}), newCache(cfg, Options{Clock: clock.now})
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{fmt.Sprintf("www.example. %d IN A 192.0.2.1", 2*maxRemaining/time.Second)}})
	if n := newSnapshotClock().transfer(t, c, d); n != 1 || answer(t, d, q) == nil {
		t.Errorf("%d entries moved", n)
	}
}

// TestSnapshotWithinBudget: reading a snapshot evicts entries and stays within the budget.
func TestSnapshotWithinBudget(t *testing.T) {
	const room = 64 << 10
	c := newCache(nil, Options{})
	for i := range 2000 {
		name := fmt.Sprintf("n%d.test.", i)
		fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 3600 IN A 192.0.2.1"}})
	}
	d := NewStore(room, Options{}).NewCache(defaults())
	newSnapshotClock().transfer(t, c, d)
	if n := d.store.Bytes(); n > room || n < room/2 {
		t.Errorf("%d bytes, the budget is %d", n, room)
	}
	if answer(t, d, question(t, "n1999.test.", dns.TypeA)) == nil {
		t.Error("the one that was used last is gone")
	}
}

// smallSnapshot returns a snapshot of two caches, one of which the reader does not have, and a
// query for an entry.
func smallSnapshot(t testing.TB) (stream []byte, q *wire.Query) {
	t.Helper()
	c, d := newCache(nil, Options{}), newCache(nil, Options{})
	q = question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{addr}})
	fetch(t, d, q, message{answer: []string{addr}})
	fetch(t, d, question(t, "x.example.", dns.TypeAAAA), message{rcode: dns.RcodeNameError, authority: soaRecord(300, 300)})
	return newSnapshotClock().write(t, map[string]*Cache{"gone": c, "here": d}), q
}

// TestSnapshotCorrupt truncates a snapshot at every byte and flips every bit.
func TestSnapshotCorrupt(t *testing.T) {
	stream, q := smallSnapshot(t)
	load := func(b []byte) (*Cache, int, error) {
		d := NewStore(16<<10, Options{}).NewCache(defaults())
		n, err := newSnapshotClock().read(t, b, map[string]*Cache{"here": d})
		d.store.check(t)
		return d, n, err
	}
	if d, n, err := load(stream); n != 2 || err != nil || answer(t, d, q) == nil {
		t.Fatalf("the whole stream: %d answers, error %v", n, err)
	}
	for i := range stream {
		if _, _, err := load(stream[:i]); !errors.Is(err, ErrStream) {
			t.Fatalf("cut short after %d bytes of %d: error %v", i, len(stream), err)
		}
		for bit := range 8 {
			b := bytes.Clone(stream)
			b[i] ^= 1 << bit
			if _, _, err := load(b); !errors.Is(err, ErrStream) {
				t.Fatalf("bit %d of byte %d is wrong: error %v", bit, i, err)
			}
		}
	}
	if _, _, err := load(append(bytes.Clone(stream), 1, 2, 3)); err != nil {
		t.Errorf("with something behind it: error %v", err)
	}
	failing := io.MultiReader(bytes.NewReader(stream[:len(stream)/2]), errReader{})
	if _, err := Read(t.Context(), failing, nil); !errors.Is(err, errUpstream) {
		t.Errorf("an error of the reader: %v", err)
	}
}

// errReader always fails.
type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errUpstream }

// TestSnapshotReadsNoFurther: no byte after the end of the snapshot is read.
func TestSnapshotReadsNoFurther(t *testing.T) {
	stream, _ := smallSnapshot(t)
	r := bytes.NewReader(append(bytes.Clone(stream), "more"...))
	in := reader{chunkReader: chunkReader{r: r}, clock: newSnapshotClock().bootClock()}
	if _, err := in.read(t.Context()); err != nil || r.Len() != len("more") {
		t.Errorf("%d bytes are left, error %v", r.Len(), err)
	}
}

// chunk returns b as a chunk of type t.
func chunk(t chunkType, b []byte) []byte {
	out := binary.BigEndian.AppendUint32([]byte{byte(t)}, uint32(len(b)))
	out = append(out, b...)
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// TestSnapshotOfLaterVersion reads what a later version may write.
func TestSnapshotOfLaterVersion(t *testing.T) {
	o := newSnapshotClock()
	q := question(t, "www.example.", dns.TypeA)
	msg := response(t, q, message{answer: []string{addr}}).Packed.Append(nil)
	entry := func(head int, flags byte) []byte {
		b := []byte{byte(head), flags, 0, 7}
		b = binary.BigEndian.AppendUint32(b, 300)
		b = binary.BigEndian.AppendUint64(b, uint64(200*time.Second))
		b = append(b, make([]byte, head-len(b))...)
		b = append(b, msg...)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	}
	stream := func(version byte, entries ...[]byte) []byte {
		b := append([]byte(magic), 0, version)
		b = append(b, chunk(chunkHead, append(o.append(nil), "and more"...))...)
		b = append(b, chunk(99, []byte("whatever"))...)
		b = append(b, chunk(chunkName, []byte("\x00\x07here"))...)
		b = append(b, chunk(chunkEntries, append(o.append(nil), bytes.Join(entries, nil)...))...)
		end := binary.BigEndian.AppendUint32(nil, uint32(len(entries)))
		return append(b, chunk(chunkEnd, append(end, "and more"...))...)
	}
	for _, tt := range []struct {
		name   string
		stream []byte
		taken  int
		err    error
	}{
		{"as now", stream(1, entry(entryHeadLen, 0)), 1, nil},
		{"a longer head", stream(1, entry(entryHeadLen+9, 0)), 1, nil},
		{"another flag", stream(1, entry(entryHeadLen, 0x40)), 0, nil},
		{"another flag, and none", stream(1, entry(entryHeadLen, 0x40), entry(entryHeadLen, 0)), 1, nil},
		{"fewer than it says", bytes.Replace(stream(1, entry(entryHeadLen, 0)), chunk(chunkEnd, []byte("\x00\x00\x00\x01and more")),
			chunk(chunkEnd, []byte("\x00\x00\x00\x02and more")), 1), 1, ErrStream},
		{"another format", stream(2, entry(entryHeadLen, 0)), 0, ErrStream},
	} {
		d := newCache(nil, Options{})
		n, err := o.read(t, tt.stream, map[string]*Cache{"here": d})
		if n != tt.taken || !errors.Is(err, tt.err) {
			t.Errorf("%s: %d answers, error %v; want %d, %v", tt.name, n, err, tt.taken, tt.err)
		}
		if got := answer(t, d, q) != nil; got != (tt.taken > 0) {
			t.Errorf("%s: answered %v", tt.name, got)
		}
	}
}

// TestTimestampAge: an age is never underestimated.
func TestTimestampAge(t *testing.T) {
	one, two := newSnapshotClock().timestamp, newSnapshotClock().timestamp
	two.boot[0]++
	at := func(s timestamp, up, wall time.Duration) timestamp {
		s.up, s.wall = s.up+up, s.wall+int64(wall)
		return s
	}
	none := timestamp{up: one.up, wall: one.wall}
	for _, tt := range []struct {
		name string
		now  timestamp
		then timestamp
		want time.Duration
		ok   bool
	}{
		{"the same start, wall clock set forth", at(one, 3, time.Hour), one, 3, true},
		{"the same start, wall clock set back", at(one, 3, -time.Hour), one, 3, true},
		{"later than now", at(one, -1, 3), one, -1, false},
		{"another start", at(two, -9, 5), one, 5, true},
		{"another start, wall clock set back", at(two, 9, -5), one, -5, false},
		{"of unknown starts", at(none, 9, 5), none, 5, true},
	} {
		if d, ok := tt.now.since(tt.then); d != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, d, ok, tt.want, tt.ok)
		}
	}
	w := newBootClock()
	first := w.now()
	second := w.now()
	if d, ok := second.since(first); !ok || d > time.Hour || second.boot == [bootLen]byte{} {
		t.Errorf("by this machine's clock: %v, %v from %+v to %+v", d, ok, first, second)
	}
}

// TestCheckSnapshot checks a snapshot without storing its entries.
func TestCheckSnapshot(t *testing.T) {
	d := newCache(nil, Options{})
	fetch(t, d, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
	var b bytes.Buffer
	if n, err := Write(t.Context(), &b, map[string]*Cache{"here": d}); n != 1 || err != nil {
		t.Fatalf("writing: %d answers, error %v", n, err)
	}
	whole := b.Bytes()
	if age, n, err := Check(t.Context(), bytes.NewReader(whole)); age < 0 || age > time.Hour || n != 1 || err != nil {
		t.Errorf("age %v, %d answers, error %v", age, n, err)
	}
	if _, _, err := Check(t.Context(), bytes.NewReader(whole[:len(whole)-1])); !errors.Is(err, ErrStream) {
		t.Errorf("cut short: error %v", err)
	}
	to := newCache(nil, Options{})
	if n, err := Read(t.Context(), bytes.NewReader(whole), map[string]*Cache{"here": to}); n != 1 || err != nil {
		t.Errorf("reading: %d answers, error %v", n, err)
	}
}

// TestSnapshotCancelled: writing and reading end with their context.
func TestSnapshotCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := newCache(nil, Options{})
	fetch(t, c, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
	if _, err := Write(ctx, io.Discard, map[string]*Cache{"c": c}); !errors.Is(err, context.Canceled) {
		t.Errorf("writing: %v", err)
	}
	stream, _ := smallSnapshot(t)
	if _, err := Read(ctx, bytes.NewReader(stream), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("reading: %v", err)
	}
	if _, err := Write(t.Context(), errWriter{}, map[string]*Cache{"c": c}); !errors.Is(err, errUpstream) {
		t.Errorf("writing where there is no room: %v", err)
	}
}

// errWriter always fails.
type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, errUpstream }

// TestSnapshotOfCachesInUse writes and reads caches in use. Entries that come or go meanwhile
// may be missing, but the snapshot is valid.
func TestSnapshotOfCachesInUse(t *testing.T) {
	cfg := defaults()
	cfg.Success.Entries = 200
	store := NewStore(testBudget, Options{})
	c, d := store.NewCache(cfg), store.NewCache(cfg)
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		clients.Go(func() {
			for n := i; ; n += 4 {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("n%d.test.", n%1000)
				q := question(t, name, dns.TypeA)
				for _, c := range []*Cache{c, d} {
					r := reply(q)
					if lookup(c, q, r, store.clock()) == missed {
						_, _ = c.Fetch(context.Background(), q, r, returns(response(t, q, message{answer: []string{name + " 60 IN A 192.0.2.1"}})))
					}
				}
				if n%97 == 0 {
					c.Flush(q.Name(), false)
				}
			}
		})
	}
	for range 20 {
		var b bytes.Buffer
		n, err := Write(t.Context(), &b, map[string]*Cache{"c": c})
		if err != nil {
			t.Fatalf("writing: %v", err)
		}
		if age, m, err := Check(t.Context(), bytes.NewReader(b.Bytes())); err != nil || m != n {
			t.Fatalf("%d answers written, %d there, of %v ago, error %v", n, m, age, err)
		}
		if _, err := Read(t.Context(), &b, map[string]*Cache{"c": d}); err != nil {
			t.Fatalf("reading: %v", err)
		}
	}
	close(stop)
	clients.Wait()
	store.check(t)
}

// FuzzRead reads a snapshot with valid framing and arbitrary entries. Each stored entry must
// answer its query with a well-formed message.
func FuzzRead(f *testing.F) {
	q := question(f, "www.example.", dns.TypeA)
	head := []byte{0, 0, 0, 0, entryHeadLen, 0, 0, 0, 0, 0, 1, 44, 0, 0, 0, 46, 144, 237, 208, 0, 0, 0, 0, 0}
	for _, m := range []message{
		{answer: []string{addr}},
		{rcode: dns.RcodeNameError, authority: soaRecord(300, 300)},
		{authority: soaRecord(300, 300)},
		{rcode: dns.RcodeServerFailure},
		{answer: []string{"www.example. 60 IN CNAME x.y.", "x.y. 60 IN A 192.0.2.9"}, compression: true},
	} {
		e := response(f, q, m).Packed.Append(bytes.Clone(head))
		binary.BigEndian.PutUint32(e, uint32(len(e)-4))
		f.Add(e, int64(0))
		f.Add(append(bytes.Clone(e), e...), int64(time.Minute))
	}
	stream, _ := smallSnapshot(f)
	f.Add(stream, int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, late int64) {
		o := newSnapshotClock()
		cfg := defaults()
		cfg.Stale = immediate
		cfg.Stale.For, cfg.Stale.TTL, cfg.NXDomainCut = time.Hour, time.Second, true
		c := NewStore(1<<20, Options{}).NewCache(cfg)
		if late >= 0 {
			whole := append([]byte(magic), 0, formatVersion)
			whole = append(whole, chunk(chunkHead, o.append(nil))...)
			whole = append(whole, chunk(chunkName, []byte("\x00\x00c"))...)
			whole = append(whole, chunk(chunkEntries, append(o.append(nil), b...))...)
			b = append(whole, chunk(chunkEnd, []byte{0, 0, 0, 1})...)
			o.advance(time.Duration(late))
		}
		if _, err := o.read(t, b, map[string]*Cache{"c": c}); err != nil && !errors.Is(err, ErrStream) {
			t.Errorf("an error of its own: %v", err)
		}
		c.store.check(t)
		queryAll(t, c)
	})
}

// queryAll queries c for all its entries.
func queryAll(t *testing.T, c *Cache) {
	t.Helper()
	all, err := collect(t.Context(), []*Cache{c})
	noError(t, err)
	for i := range all {
		var q wire.Query
		msg := all[i].packed.Append(nil)
		resp, err := q.Restore(msg, all[i].flags&doFlag != 0, all[i].flags&cdFlag != 0)
		if err != nil {
			t.Fatalf("what was taken can't be read again: %v\n%x", err, msg)
		}
		if again := resp.Packed.Append(nil); !bytes.Equal(again, msg) {
			t.Errorf("read again\n%x is\n%x", msg, again)
		}
		r := reply(&q)
		if lookup(c, &q, r, c.store.clock()) == missed {
			t.Errorf("not found: %x", msg)
			continue
		}
		var m dns.Msg
		r.Shuffle()
		if out := r.Finish(wire.MinUDP); len(out) > wire.MinUDP || m.Unpack(out) != nil {
			t.Errorf("the client can't read %x", out)
		}
	}
}

const manyAnswers = 100_000

// manyEntries returns a cache of 100,000 names with one address each.
func manyEntries(t testing.TB) *Cache {
	t.Helper()
	cfg := defaults()
	cfg.Success.Entries = 2 * manyAnswers
	c := NewStore(256<<20, Options{}).NewCache(cfg)
	var r wire.Reply
	buf := make([]byte, 0, 512)
	for i := range manyAnswers {
		name := fmt.Sprintf("svc%d.default.svc.cluster.local.", i)
		q := question(t, name, dns.TypeA)
		r.Start(buf, q)
		noError(t, fetchErr(c.Fetch(t.Context(), q, &r, returns(response(t, q, message{answer: []string{name + " 3600 IN A 192.0.2.1"}})))))
	}
	return c
}

// TestSnapshotMemory bounds the memory for writing, by the number of entries, and for reading,
// by the size of the caches.
func TestSnapshotMemory(t *testing.T) {
	race.SkipSequential(t)
	const n = 10_000
	cfg := defaults()
	cfg.Success.Entries = 2 * n
	c := newCache(cfg, Options{})
	for i := range n {
		name := fmt.Sprintf("svc%d.default.svc.cluster.local.", i)
		fetch(t, c, question(t, name, dns.TypeA), message{answer: []string{name + " 3600 IN A 192.0.2.1"}})
	}
	var stream bytes.Buffer
	stream.Grow(4 << 20)
	written := allocated(func() { _, _ = Write(t.Context(), &stream, map[string]*Cache{"c": c}) })
	if most := uint64(n*60 + 512<<10); written > most {
		t.Errorf("writing %d answers allocates %d bytes, want %d at most", n, written, most)
	}
	d := newCache(cfg, Options{})
	taken := 0
	read := allocated(func() { taken, _ = Read(t.Context(), &stream, map[string]*Cache{"c": d}) })
	if most := uint64(2*d.store.Bytes() + 512<<10); taken != n || read > most {
		t.Errorf("reading %d of %d answers allocates %d bytes, want %d at most", taken, n, read, most)
	}
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// BenchmarkWrite writes a snapshot of 100,000 entries.
func BenchmarkWrite(b *testing.B) {
	caches := map[string]*Cache{"c": manyEntries(b)}
	b.ReportAllocs()
	for b.Loop() {
		if n, err := Write(b.Context(), io.Discard, caches); n != manyAnswers || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkRead reads a snapshot of 100,000 entries into an empty cache.
func BenchmarkRead(b *testing.B) {
	c := manyEntries(b)
	var stream bytes.Buffer
	if _, err := Write(b.Context(), &stream, map[string]*Cache{"c": c}); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(stream.Len()))
	b.ReportAllocs()
	for b.Loop() {
		caches := map[string]*Cache{"c": NewStore(256<<20, Options{}).NewCache(&c.cfg)}
		if n, err := Read(b.Context(), bytes.NewReader(stream.Bytes()), caches); n != manyAnswers || err != nil {
			b.Fatal(n, err)
		}
	}
}
