// Inside the package: these helpers also serve the tests that check shards, keys and the store's clock.

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

// defaults returns the settings of a `cache` directive without options.
func defaults() *config.Cache {
	return &config.Cache{
		Success:  config.CacheLimits{Entries: 9984, MaxTTL: time.Hour, MinTTL: 5 * time.Second},
		Denial:   config.CacheLimits{Entries: 9984, MaxTTL: 30 * time.Minute, MinTTL: 5 * time.Second},
		Servfail: 5 * time.Second,
	}
}

// manualClock is a clock that moves only by advance.
type manualClock struct{ t time.Duration }

func (h *manualClock) now() time.Duration      { return h.t }
func (h *manualClock) advance(d time.Duration) { h.t += d }

func newManualClock() *manualClock { return &manualClock{time.Hour} }

// testBudget is enough for all entries of a test that is not about the budget.
const testBudget = 32 << 20

// newCache returns a cache in a store of its own. A nil cfg means defaults.
func newCache(cfg *config.Cache, opts Options) *Cache {
	if cfg == nil {
		cfg = defaults()
	}
	return NewStore(testBudget, opts).NewCache(cfg)
}

// question returns a query as a stub resolver sends it, changed by shape.
func question(t testing.TB, name string, qtype uint16, shape ...func(*dns.Msg)) *wire.Query {
	t.Helper()
	var m dns.Msg
	m.SetQuestion(name, qtype)
	for _, f := range shape {
		f(&m)
	}
	packet, err := m.Pack()
	if err != nil {
		t.Fatalf("packing a query for %s: %v", name, err)
	}
	var q wire.Query
	if v := q.Parse(packet); v != wire.Serve {
		t.Fatalf("query for %s: verdict %d", name, v)
	}
	return &q
}

func do(m *dns.Msg)   { m.SetEdns0(1232, true) }
func edns(m *dns.Msg) { m.SetEdns0(1232, false) }
func cd(m *dns.Msg)   { m.CheckingDisabled = true }
func noRD(m *dns.Msg) { m.RecursionDesired = false }
func chaos(m *dns.Msg) {
	m.Question[0].Qclass = dns.ClassCHAOS
}

// message describes an upstream's reply.
type message struct {
	rcode       int
	tc          bool
	answer      []string
	authority   []string
	additional  []string
	compression bool
}

func parseRecords(t testing.TB, lines []string) []dns.RR {
	t.Helper()
	var rrs []dns.RR
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatalf("record %q: %v", line, err)
		}
		rrs = append(rrs, rr)
	}
	return rrs
}

// response packs m as the reply to q and parses it.
func response(t testing.TB, q *wire.Query, m message) wire.Response {
	t.Helper()
	var req, out dns.Msg
	if err := req.Unpack(q.Packet); err != nil {
		t.Fatalf("unpacking the query: %v", err)
	}
	out.SetRcode(&req, m.rcode)
	out.RecursionAvailable = true
	out.Truncated = m.tc
	out.Compress = m.compression
	out.Answer = parseRecords(t, m.answer)
	out.Ns = parseRecords(t, m.authority)
	out.Extra = parseRecords(t, m.additional)
	packet, err := out.Pack()
	if err != nil {
		t.Fatalf("packing a response: %v", err)
	}
	resp, err := wire.ParseResponse(packet, q)
	if err != nil {
		t.Fatalf("reading a response: %v", err)
	}
	return resp
}

// returns is an exchange that returns resp.
func returns(resp wire.Response) ExchangeFunc {
	return func(context.Context, *wire.Query) (wire.Response, error) { return resp, nil }
}

// mustNotExchange is an exchange that fails the test.
func mustNotExchange(t testing.TB) ExchangeFunc {
	return func(context.Context, *wire.Query) (wire.Response, error) {
		t.Error("exchange called although the answer is cached")
		return wire.Response{}, errors.New("unexpected exchange")
	}
}

// reply is an empty reply to q.
func reply(q *wire.Query) *wire.Reply {
	var r wire.Reply
	r.Start(make([]byte, 0, 1024), q)
	return &r
}

// replyMsg returns the message that r's client receives.
func replyMsg(t testing.TB, r *wire.Reply) *dns.Msg {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(r.Finish(wire.MaxMessage)); err != nil {
		t.Fatalf("unpacking the reply: %v", err)
	}
	return &m
}

// ttls returns the distinct TTLs of m's records.
func ttls(m *dns.Msg) []uint32 {
	seen := map[uint32]bool{}
	var out []uint32
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT && !seen[h.Ttl] {
				seen[h.Ttl] = true
				out = append(out, h.Ttl)
			}
		}
	}
	return out
}

// fetch calls Fetch with an exchange that returns m, and returns the client's reply.
func fetch(t testing.TB, c *Cache, q *wire.Query, m message) *dns.Msg {
	t.Helper()
	r := reply(q)
	if _, err := c.Fetch(t.Context(), q, r, returns(response(t, q, m))); err != nil {
		t.Fatalf("fetching: %v", err)
	}
	return replyMsg(t, r)
}

// answer returns c's reply from the cache, nil at a miss. It counts a hit.
func answer(t testing.TB, c *Cache, q *wire.Query) *dns.Msg {
	t.Helper()
	r := reply(q)
	res := c.Get(q, r, c.store.clock())
	res.Count()
	if !res.Hit() {
		return nil
	}
	return replyMsg(t, r)
}

// outcome is the result of a counted lookup.
type outcome uint8

const (
	missed       outcome = iota
	answered             // the reply is complete
	needsRefresh         // it is, and the name is to be fetched again
)

// lookup calls Get and counts a hit. The Fetch that follows a miss counts the miss.
func lookup(c *Cache, q *wire.Query, r *wire.Reply, now time.Duration) outcome {
	res := c.Get(q, r, now)
	switch {
	case !res.Hit():
		return missed
	case res.Count():
		return needsRefresh
	}
	return answered
}

const (
	soa         = "example. %d IN SOA ns.example. admin.example. 1 7200 1800 86400 %d"
	addr        = "www.example. 300 IN A 192.0.2.1"
	missingName = "x.example."
)

func soaRecord(ttl, minimum int) []string { return []string{fmt.Sprintf(soa, ttl, minimum)} }

func TestTTLCountsDown(t *testing.T) {
	clock := newManualClock()
	c := newCache(nil, Options{Clock: clock.now})
	q := question(t, "www.example.", dns.TypeA)
	fetch(t, c, q, message{answer: []string{addr}})
	for _, step := range []struct {
		advance time.Duration
		want    uint32
	}{
		{0, 300}, {time.Nanosecond, 300}, {time.Second - 2*time.Nanosecond, 300}, {time.Nanosecond, 299},
		{298 * time.Second, 1}, {time.Second - time.Nanosecond, 1},
	} {
		clock.advance(step.advance)
		m := answer(t, c, q)
		if m == nil {
			t.Fatalf("after %v more: a miss, want TTL %d", step.advance, step.want)
		}
		equal(t, []uint32{step.want}, ttls(m), "after %v more", step.advance)
	}
	clock.advance(time.Nanosecond)
	if answer(t, c, q) != nil {
		t.Fatal("an entry outlives its TTL")
	}
	m := fetch(t, c, q, message{answer: []string{"www.example. 60 IN A 192.0.2.9"}})
	equal(t, []uint32{60}, ttls(m), "the expired entry was not replaced")
	if got := c.Stats().Entries; got != (Kinds{Success: 1}) {
		t.Errorf("entries %+v, want one", got)
	}
}

func TestKeyMatchesQuestion(t *testing.T) {
	stored := func() (*Cache, *manualClock) {
		clock := newManualClock()
		c := newCache(nil, Options{Clock: clock.now})
		fetch(t, c, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
		return c, clock
	}
	tests := map[string]struct {
		q   *wire.Query
		hit bool
	}{
		"the same":          {question(t, "www.example.", dns.TypeA), true},
		"in another case":   {question(t, "wWw.EXAMPLE.", dns.TypeA), true},
		"with EDNS":         {question(t, "www.example.", dns.TypeA, edns), true},
		"without recursion": {question(t, "www.example.", dns.TypeA, noRD), true},
		"with DO":           {question(t, "www.example.", dns.TypeA, do), false},
		"with CD":           {question(t, "www.example.", dns.TypeA, cd), false},
		"another type":      {question(t, "www.example.", dns.TypeAAAA), false},
		"another class":     {question(t, "www.example.", dns.TypeA, chaos), false},
		"another name":      {question(t, "ww.example.", dns.TypeA), false},
		"a name below":      {question(t, "a.www.example.", dns.TypeA), false},
		"the name above":    {question(t, "example.", dns.TypeA), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := stored()
			m := answer(t, c, tt.q)
			if (m != nil) != tt.hit {
				t.Fatalf("hit: %v", m != nil)
			}
			var req dns.Msg
			noError(t, req.Unpack(tt.q.Packet))
			if m != nil && (m.Question[0] != req.Question[0] || m.Answer[0].Header().Name != req.Question[0].Name) {
				t.Errorf("asked for %s, answered\n%s", req.Question[0].Name, m)
			}
		})
	}
}

func TestEntryReplacement(t *testing.T) {
	good := message{answer: []string{addr}}
	gone := message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}
	fail := message{rcode: dns.RcodeServerFailure}
	tests := map[string]struct {
		first, second message
		want          Kinds
		rcode         int
	}{
		"an answer replaces a denial":         {gone, good, Kinds{Success: 1}, dns.RcodeSuccess},
		"a denial replaces an answer":         {good, gone, Kinds{Denial: 1}, dns.RcodeNameError},
		"a failure does not shadow an answer": {good, fail, Kinds{Success: 1}, dns.RcodeSuccess},
		"a failure does not shadow a denial":  {gone, fail, Kinds{Denial: 1}, dns.RcodeNameError},
		"an answer replaces a failure":        {fail, good, Kinds{Success: 1}, dns.RcodeSuccess},
		"a denial replaces a failure":         {fail, gone, Kinds{Denial: 1}, dns.RcodeNameError},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCache(nil, Options{Clock: newManualClock().now})
			q := question(t, "www.example.", dns.TypeA)
			// Fetch runs an exchange only at a miss. The exchange itself stores the first
			// response, as a concurrent call would.
			r := reply(q)
			if _, err := c.Fetch(t.Context(), q, r, func(context.Context, *wire.Query) (wire.Response, error) {
				k := c.key(q)
				k.shard.shard.mu.Lock()
				put(c, &k, response(t, q, tt.first))
				k.shard.shard.mu.Unlock()
				return response(t, q, tt.second), nil
			}); err != nil {
				t.Fatal(err)
			}
			if got := c.Stats().Entries; got != tt.want {
				t.Errorf("entries %+v, want %+v", got, tt.want)
			}
			if m := answer(t, c, q); m == nil || m.Rcode != tt.rcode {
				t.Errorf("answered %v, want rcode %d", m, tt.rcode)
			}
		})
	}
	t.Run("a failure replaces an expired answer", func(t *testing.T) {
		clock := newManualClock()
		c := newCache(nil, Options{Clock: clock.now})
		q := question(t, "www.example.", dns.TypeA)
		fetch(t, c, q, good)
		clock.advance(300 * time.Second)
		fetch(t, c, q, fail)
		if m := answer(t, c, q); m == nil || m.Rcode != dns.RcodeServerFailure {
			t.Errorf("answered %v, want the failure", m)
		}
		clock.advance(5 * time.Second)
		if m := answer(t, c, q); m != nil {
			t.Errorf("the failure outlives servfail:\n%s", m)
		}
	})
}

func TestCovers(t *testing.T) {
	name := func(s string) []byte {
		n, err := wire.ParseName(s)
		noError(t, err)
		return []byte(n)
	}
	tests := map[string]struct {
		zones []wire.Name
		name  string
		want  bool
	}{
		"no zones":            {nil, "www.example.", true},
		"the root":            {[]wire.Name{wire.Root}, "www.example.", true},
		"the root itself":     {[]wire.Name{wire.Root}, ".", true},
		"the zone":            {[]wire.Name{"\x07example\x00"}, "example.", true},
		"below the zone":      {[]wire.Name{"\x07example\x00"}, "a.b.example.", true},
		"above the zone":      {[]wire.Name{"\x07example\x00"}, ".", false},
		"ends like the zone":  {[]wire.Name{"\x07example\x00"}, "anexample.", false},
		"beside the zone":     {[]wire.Name{"\x07example\x00"}, "a.test.", false},
		"in the second zone":  {[]wire.Name{"\x07example\x00", "\x04test\x00"}, "a.test.", true},
		"a label like a zone": {[]wire.Name{"\x01a\x00"}, "\\001a\\000.test.", false},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			cfg := defaults()
			cfg.Zones = tt.zones
			if got := newCache(cfg, Options{}).Covers(name(tt.name)); got != tt.want {
				t.Errorf("covers %s: %v", tt.name, got)
			}
		})
	}
}

// TestSame compares, for random replies at random moments, what Fetch gives with
// what Answer gives.
func TestSame(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	clock := newManualClock()
	c := newCache(nil, Options{Clock: clock.now})
	for i := range 500 {
		name := fmt.Sprintf("n%d.example.", rng.IntN(50))
		q := question(t, name, dns.TypeA)
		m := message{compression: rng.IntN(2) == 0, rcode: []int{0, 0, 2, 3}[rng.IntN(4)]}
		if m.rcode == 0 {
			for range 1 + rng.IntN(4) {
				m.answer = append(m.answer, fmt.Sprintf("%s %d IN A 192.0.2.%d", name, rng.IntN(100), rng.IntN(255)))
			}
		} else {
			m.authority = soaRecord(rng.IntN(100), rng.IntN(100))
		}
		resp := response(t, q, m)
		r := reply(q)
		noError(t, fetchErr(c.Fetch(t.Context(), q, r, returns(resp))))
		first := replyMsg(t, r)
		second := answer(t, c, q)
		if second == nil || first.String() != second.String() {
			t.Fatalf("step %d: Fetch gave\n%s\nAnswer\n%v", i, first, second)
		}
		clock.advance(time.Duration(rng.Int64N(int64(10 * time.Second))))
	}
}

// fetchErr is the error of a Fetch.
func fetchErr(_ bool, err error) error { return err }

// noError ends the test if err is not nil.
func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // not before: benchmarks would measure it
		t.Fatal(err)
	}
}

// equal fails the test if want and got differ. What is said about them has the format of [fmt.Sprintf].
func equal(t testing.TB, want, got any, format string, args ...any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(format, args...), d)
	}
}
