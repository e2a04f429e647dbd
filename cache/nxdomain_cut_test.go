// Inside the package: it stores and removes entries under a shard's lock.

package cache

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

func cutCache(opts Options, bounds ...wire.Name) *Cache {
	cfg := defaults()
	cfg.NXDomainCut = true
	return NewStore(testBudget, opts).NewCache(cfg, bounds...)
}

func wireName(t testing.TB, s string) wire.Name {
	t.Helper()
	n, err := wire.ParseName(s)
	noError(t, err)
	return n
}

// TestNXDomainCut checks which names the denial of a name denies.
func TestNXDomainCut(t *testing.T) {
	denial := message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}
	aliased := denial
	aliased.answer = []string{"x.example. 60 IN CNAME y.example."}
	outside := message{rcode: dns.RcodeNameError, authority: []string{"other. 60 IN SOA ns.other. admin.other. 1 7200 1800 86400 60"}}
	beside := message{rcode: dns.RcodeNameError, authority: []string{"a.x.example. 60 IN SOA ns.other. admin.other. 1 7200 1800 86400 60"}}
	tests := map[string]struct {
		of     string // the denied name; "" is x.example.
		otype  uint16
		oshape func(*dns.Msg)
		m      message
		bounds []string
		name   string
		qtype  uint16
		shape  func(*dns.Msg)
		want   bool
	}{
		"a name below":              {m: denial, name: "a.x.example.", want: true},
		"of another type":           {m: denial, name: "a.x.example.", qtype: dns.TypeSRV, want: true},
		"the name itself, AAAA":     {m: denial, name: "x.example.", qtype: dns.TypeAAAA, want: true},
		"in another case":           {m: denial, name: "a.X.eXample.", want: true},
		"three labels below":        {m: denial, name: "_b._a.c.x.example.", qtype: dns.TypeSRV, want: true},
		"four labels below":         {m: denial, name: "d.c.b.a.x.example.", want: true},
		"five labels below":         {m: denial, name: "e.d.c.b.a.x.example.", want: false},
		"a name that ends like it":  {m: denial, name: "ax.example."},
		"a name beside":             {m: denial, name: "y.example."},
		"the name above":            {m: denial, name: "example."},
		"a client that asks for DO": {m: denial, name: "a.x.example.", shape: do},
		"one that checks":           {m: denial, name: "a.x.example.", shape: cd},
		"another class":             {m: denial, name: "a.x.example.", shape: chaos},
		"with EDNS":                 {m: denial, name: "a.x.example.", shape: edns, want: true},
		"denied for AAAA":           {m: denial, otype: dns.TypeAAAA, name: "a.x.example."},
		"denied for DO":             {m: denial, oshape: do, name: "a.x.example."},
		"denied below an underscore": {of: "_tcp.x.example.", m: denial, name: "_http._tcp.x.example.",
			qtype: dns.TypeSRV},
		"a reverse name": {of: "10.in-addr.arpa.", name: "1.10.in-addr.arpa.", qtype: dns.TypePTR,
			m: message{rcode: dns.RcodeNameError, authority: []string{". 60 IN SOA ns. admin. 1 7200 1800 86400 60"}}},
		"a top-level domain":     {of: "example.", m: denial, name: "a.example."},
		"a zone transfer":        {m: denial, name: "x.example.", qtype: dns.TypeAXFR},
		"behind an alias":        {m: aliased, name: "a.x.example."},
		"no such record":         {m: message{authority: soaRecord(60, 60)}, name: "a.x.example."},
		"no SOA":                 {m: message{rcode: dns.RcodeNameError}, name: "a.x.example."},
		"an SOA of elsewhere":    {m: outside, name: "a.x.example."},
		"an SOA from below":      {m: beside, name: "a.x.example."},
		"the root":               {of: ".", m: message{rcode: dns.RcodeNameError, authority: []string{". 60 IN SOA a. b. 1 2 3 4 60"}}, name: "a.x.example."},
		"the whole world's SOA":  {m: message{rcode: dns.RcodeNameError, authority: []string{". 60 IN SOA a. b. 1 2 3 4 60"}}, name: "a.x.example.", want: true},
		"a bound above":          {m: denial, bounds: []string{"example."}, name: "a.x.example.", want: true},
		"a bound at the name":    {m: denial, bounds: []string{".", "x.example."}, name: "a.x.example.", want: true},
		"a bound below":          {m: denial, bounds: []string{"example.", "a.x.example."}, name: "a.x.example."},
		"a bound further below":  {m: denial, bounds: []string{"b.a.x.example."}, name: "a.x.example.", want: true},
		"a bound in between":     {m: denial, bounds: []string{"a.x.example.", "."}, name: "c.b.a.x.example."},
		"a bound somewhere else": {m: denial, bounds: []string{"b.x.example."}, name: "a.x.example.", want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var bounds []wire.Name
			for _, b := range tt.bounds {
				bounds = append(bounds, wireName(t, b))
			}
			clock := newManualClock()
			c := cutCache(Options{Clock: clock.now}, bounds...)
			of, shape, oshape := tt.of, tt.shape, tt.oshape
			if of == "" {
				of = "x.example."
			}
			if shape == nil {
				shape = func(*dns.Msg) {}
			}
			if oshape == nil {
				oshape = func(*dns.Msg) {}
			}
			fetch(t, c, question(t, of, max(tt.otype, dns.TypeA), oshape), tt.m)
			q := question(t, tt.name, max(tt.qtype, dns.TypeA), shape)
			clock.advance(10 * time.Second)
			m := answer(t, c, q)
			if (m != nil) != tt.want {
				t.Fatalf("answered %v", m)
			}
			st := c.Stats()
			if !tt.want {
				if st.Cuts != 0 || st.Misses != 2 {
					t.Errorf("stats %+v", st)
				}
				return
			}
			var req dns.Msg
			noError(t, req.Unpack(q.Packet))
			if m.Rcode != dns.RcodeNameError || m.Question[0] != req.Question[0] || len(m.Ns) != 1 || !m.RecursionAvailable {
				t.Errorf("answered\n%s", m)
			}
			equal(t, []uint32{50}, ttls(m), "TTLs")
			want := parseRecords(t, tt.m.authority)[0]
			want.Header().Ttl = 50
			if got := m.Ns[0]; !strings.EqualFold(got.String(), want.String()) {
				t.Errorf("SOA\n%s, want\n%s", got, want)
			}
			if st.Cuts != 1 || st.Misses != 1 || st.Hits != (Kinds{Denial: 1}) || st.Requests != 2 {
				t.Errorf("stats %+v", st)
			}
			clock.advance(50 * time.Second)
			if answer(t, c, q) != nil {
				t.Error("denied by what has expired")
			}
		})
	}
}

// TestNXDomainCutDisabled: without the option, and in another cache, nothing is denied.
func TestNXDomainCutDisabled(t *testing.T) {
	store := NewStore(testBudget, Options{Clock: newManualClock().now})
	cfg := defaults()
	off := store.NewCache(cfg)
	cfg.NXDomainCut = true
	on, other := store.NewCache(cfg), store.NewCache(cfg)
	x, below := question(t, "x.example.", dns.TypeA), question(t, "a.x.example.", dns.TypeA)
	for _, c := range []*Cache{off, on} {
		fetch(t, c, x, gone)
	}
	fetch(t, other, question(t, "z.example.", dns.TypeA), gone)
	if answer(t, off, below) != nil || answer(t, other, below) != nil {
		t.Error("denied without the option, or by what another cache keeps")
	}
	if answer(t, on, below) == nil {
		t.Error("not denied")
	}
	on.Close()
	if answer(t, on, below) != nil {
		t.Error("denied by a closed cache")
	}
	if on.cuts.Load() != 0 || off.cuts.Load() != 0 || other.cuts.Load() != 1 {
		t.Errorf("cuts %d, %d, %d", on.cuts.Load(), off.cuts.Load(), other.cuts.Load())
	}
}

// TestNXDomainCutExpires: what is known of a name goes before what is known of one above it.
func TestNXDomainCutExpires(t *testing.T) {
	c := cutCache(Options{Clock: newManualClock().now})
	below := question(t, "a.x.example.", dns.TypeA)
	fetch(t, c, below, message{answer: []string{"a.x.example. 300 IN A 192.0.2.1"}})
	fetch(t, c, question(t, "x.example.", dns.TypeA), gone)
	if m := answer(t, c, below); m == nil || len(m.Answer) != 1 {
		t.Errorf("answered %v", m)
	}
	// An answer in place of the denial ends it.
	k := c.key(question(t, "x.example.", dns.TypeA))
	k.shard.shard.mu.Lock()
	put(c, &k, response(t, k.q, message{answer: []string{"x.example. 300 IN A 192.0.2.1"}}))
	k.shard.shard.mu.Unlock()
	if m := answer(t, c, question(t, "b.x.example.", dns.TypeA)); m != nil {
		t.Errorf("denied by a name that exists: %v", m)
	}
}

// TestNXDomainCutOfExistingNames: a denial answers for no other name while a name at or below the denied one is cached that
// exists, whichever came first, and answers again when that is gone.
func TestNXDomainCutOfExistingNames(t *testing.T) {
	deep := strings.Repeat("l.", maxExistingNames) + "x.example."
	for name, below := range map[string]struct {
		name  string
		qtype uint16
		m     message
		want  bool // the denial answers
	}{
		"an address":               {name: "a.x.example.", qtype: dns.TypeA, m: message{answer: []string{"a.x.example. 300 IN A 192.0.2.1"}}},
		"of another type":          {name: "a.x.example.", qtype: dns.TypeTXT, m: message{answer: []string{"a.x.example. 300 IN TXT t"}}},
		"no such record":           {name: "a.x.example.", qtype: dns.TypeAAAA, m: message{authority: soaRecord(300, 300)}},
		"an alias to nothing":      {name: "a.x.example.", qtype: dns.TypeA, m: message{rcode: dns.RcodeNameError, answer: []string{"a.x.example. 300 IN CNAME y.example."}, authority: soaRecord(300, 300)}},
		"of the denied name":       {name: "x.example.", qtype: dns.TypeAAAA, m: message{answer: []string{"x.example. 300 IN AAAA 2001:db8::1"}}},
		"beyond the look-ups":      {name: "f.e.d.c.b.a.x.example.", qtype: dns.TypeA, m: message{answer: []string{"f.e.d.c.b.a.x.example. 300 IN A 192.0.2.1"}}},
		"a name with many labels":  {name: deep, qtype: dns.TypeA, m: message{answer: []string{deep + " 300 IN A 192.0.2.1"}}},
		"a name that is denied":    {name: "a.x.example.", qtype: dns.TypeA, m: gone, want: true},
		"a name that fails":        {name: "a.x.example.", qtype: dns.TypeA, m: message{rcode: dns.RcodeServerFailure}, want: true},
		"a name that ends like it": {name: "ax.example.", qtype: dns.TypeA, m: message{answer: []string{"ax.example. 300 IN A 192.0.2.1"}}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, first := range []bool{true, false} {
				c := cutCache(Options{Clock: newManualClock().now})
				if first {
					fetch(t, c, question(t, below.name, below.qtype), below.m)
				}
				fetch(t, c, question(t, "x.example.", dns.TypeA), gone)
				if !first {
					k := c.key(question(t, below.name, below.qtype))
					k.shard.shard.mu.Lock()
					put(c, &k, response(t, k.q, below.m))
					k.shard.shard.mu.Unlock()
				}
				q := question(t, "other.x.example.", dns.TypeA)
				if got := answer(t, c, q) != nil; got != below.want {
					t.Errorf("stored first: %v; denied %v, want %v", first, got, below.want)
				}
				if _, ok := c.DeniedBy(q, 0); ok != below.want {
					t.Errorf("stored first: %v; DeniedBy says %v", first, ok)
				}
				c.Flush([]byte(wireName(t, below.name)), false)
				fetch(t, c, question(t, "x.example.", dns.TypeA), gone)
				if answer(t, c, q) == nil {
					t.Errorf("stored first: %v; not denied although the name is no longer cached", first)
				}
				if c.Close(); c.existing.counts != nil || c.existing.long != 0 {
					t.Errorf("%d names are left, %d long", len(c.existing.counts), c.existing.long)
				}
			}
		})
	}
}

// TestNXDomainCutDeniedBy: the denial that answers for a name is known, and a flush of the name removes it.
func TestNXDomainCutDeniedBy(t *testing.T) {
	c := cutCache(Options{Clock: newManualClock().now})
	fetch(t, c, question(t, "x.example.", dns.TypeA), gone)
	q := question(t, "a.b.X.example.", dns.TypeTXT)
	i, ok := c.DeniedBy(q, 0)
	if !ok || i.Name != wireName(t, "x.example.") || !i.Subtree || i.Rcode != wire.NXDomain {
		t.Errorf("%v: %+v", ok, i)
	}
	if n := c.Flush([]byte(wireName(t, "b.example.")), false); n != 0 {
		t.Errorf("flushing a name beside removes %d", n)
	}
	if n := c.Flush([]byte(wireName(t, "a.b.x.example.")), false); n != 1 {
		t.Errorf("flushing removes %d, want the denial", n)
	}
	if _, ok := c.DeniedBy(q, 0); ok || answer(t, c, q) != nil {
		t.Error("still denied")
	}
}

// TestNXDomainCutMatchesModel asks for random names below random denials and compares with the rule,
// said in another way.
func TestNXDomainCutMatchesModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		some := func() string {
			name := "example."
			for range rng.IntN(7) {
				name = string(rune('a'+rng.IntN(3))) + "." + name
			}
			return name
		}
		bound := some()
		c := cutCache(Options{Clock: newManualClock().now}, wire.Root, wireName(t, bound))
		denied := make(map[string]bool)
		for range 200 {
			name := some()
			q := question(t, name, []uint16{dns.TypeA, dns.TypeAAAA}[rng.IntN(2)])
			want := false
			at := name
			if q.Type == dns.TypeA {
				want = denied[name]
				at = parentName(name)
			}
			for range maxCutLookups {
				parted := dns.IsSubDomain(bound, name) && !dns.IsSubDomain(bound, at)
				want = want || denied[at] && !parted
				at = parentName(at)
			}
			m := answer(t, c, q)
			if got := m != nil && m.Rcode == dns.RcodeNameError; got != want {
				t.Fatalf("seed %d, %s, bound %s: denied %v, want %v", seed, name, bound, got, want)
			}
			if m == nil && rng.IntN(20) == 0 && name != "example." {
				q := question(t, name, dns.TypeA)
				fetch(t, c, q, gone)
				denied[name] = true
			}
		}
	}
}

func parentName(name string) string {
	labels := dns.SplitDomainName(name)
	if len(labels) == 0 {
		return "."
	}
	return dns.Fqdn(strings.Join(labels[1:], "."))
}

// TestNXDomainCutAllocs pins what a name costs that is denied by one above it, and one that is
// looked for in vain.
func TestNXDomainCutAllocs(t *testing.T) {
	c := cutCache(Options{Clock: newManualClock().now})
	fetch(t, c, question(t, "x.example.", dns.TypeA), gone)
	buf := make([]byte, 0, 4096)
	var r wire.Reply
	for name, want := range map[string]outcome{"c.b.a.x.example.": answered, "c.b.a.y.example.": missed} {
		q := question(t, name, dns.TypeAAAA)
		if n := testing.AllocsPerRun(1000, func() {
			r.Start(buf, q)
			if lookup(c, q, &r, c.store.clock()) != want {
				t.Error(name)
			}
			r.Finish(q.Limit())
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// BenchmarkMiss is a miss of a name of six labels, where names are denied and where none
// is.
func BenchmarkMiss(b *testing.B) {
	for _, denied := range []int{0, 1} {
		b.Run(fmt.Sprintf("%d denied", denied), func(b *testing.B) {
			c := cutCache(Options{})
			for range denied {
				fetch(b, c, question(b, "x.example.", dns.TypeA), gone)
			}
			q := question(b, "www.google.com.default.svc.cluster.local.", dns.TypeAAAA)
			var r wire.Reply
			r.Start(make([]byte, 0, 4096), q)
			b.ReportAllocs()
			for b.Loop() {
				if lookup(c, q, &r, 0) != missed {
					b.Fatal("a hit")
				}
			}
		})
	}
}
