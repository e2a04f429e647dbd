// Inside the package: BenchmarkLook measures the lookup under the shard's lock, and the rest shares its helpers.

package cache

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestAllocations pins the allocations of a hit, a miss, and a Fetch without waiters.
func TestAllocations(t *testing.T) {
	c := newCache(nil, Options{})
	hit, miss := question(t, "www.example.", dns.TypeA), question(t, missingName, dns.TypeA)
	fetch(t, c, hit, message{answer: []string{addr}})
	buf := make([]byte, 0, 4096)
	var r wire.Reply
	r.Start(buf, hit)
	ctx, none := t.Context(), mustNotExchange(t)
	if n := testing.AllocsPerRun(1000, func() {
		r.Start(buf, hit)
		if found, err := c.Fetch(ctx, hit, &r, none); !found || err != nil {
			t.Error("a miss")
		}
	}); n != 0 {
		t.Errorf("a hit by Fetch allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		r.Start(buf, hit)
		if lookup(c, hit, &r, 0) == missed {
			t.Error("a miss")
		}
		r.Finish(hit.Limit())
	}); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		r.Start(buf, miss)
		if lookup(c, miss, &r, 0) != missed {
			t.Error("a hit")
		}
	}); n != 0 {
		t.Errorf("a miss allocates %v times", n)
	}
	small := defaults()
	small.Success.Entries = 1
	c = newCache(small, Options{})
	i := 0
	queries := [2]*wire.Query{hit, miss}
	asks := [2]ExchangeFunc{
		returns(response(t, hit, message{answer: []string{addr}})),
		returns(response(t, miss, message{answer: []string{missingName + " 300 IN A 192.0.2.1"}})),
	}
	if n := testing.AllocsPerRun(1000, func() { // each evicts the other
		i ^= 1
		r.Start(buf, queries[i])
		if lookup(c, queries[i], &r, 0) != missed || fetchErr(c.Fetch(ctx, queries[i], &r, asks[i])) != nil {
			t.Fatal("a hit, or an error")
		}
	}); n > 2 { // the entry, and the list's element
		t.Errorf("a fetch that is stored allocates %v times", n)
	}
	name := hit.Name()
	if n := testing.AllocsPerRun(1000, func() { c.Covers(name) }); n != 0 {
		t.Errorf("Covers allocates %v times", n)
	}
}

const benchNames = 1024 // more than one list of a shard, less than the cache

func benchCache(b *testing.B) (*Cache, [][]byte) {
	c := newCache(nil, Options{})
	packets := make([][]byte, benchNames)
	for i := range packets {
		name := fmt.Sprintf("svc%d.default.svc.cluster.local.", i)
		q := question(b, name, dns.TypeA)
		packets[i] = q.Packet
		fetch(b, c, q, message{answer: []string{name + " 3600 IN A 192.0.2.1"}})
	}
	return c, packets
}

// BenchmarkHit measures a cached query: parse, look up, write.
func BenchmarkHit(b *testing.B) {
	c, packets := benchCache(b)
	var q wire.Query
	var r wire.Reply
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		q.Parse(packets[i%benchNames])
		r.Start(buf, &q)
		if lookup(c, &q, &r, 0) == missed {
			b.Fatal("a miss")
		}
		r.Finish(q.Limit())
	}
}

// BenchmarkLook measures a hit without its copy: hash, lock, lookup, move in the list.
func BenchmarkLook(b *testing.B) {
	c, packets := benchCache(b)
	queries := make([]wire.Query, len(packets))
	for i, p := range packets {
		queries[i].Parse(p)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := c.key(&queries[i%benchNames])
		s := k.shard.shard
		s.mu.Lock()
		if res := c.lookup(&k, 0); !res.Hit() || res.count() {
			b.Fatal("a miss")
		}
		s.mu.Unlock()
	}
}

// BenchmarkAnswer measures the lookup and the copy of one name.
func BenchmarkAnswer(b *testing.B) {
	c, packets := benchCache(b)
	var q wire.Query
	var r wire.Reply
	q.Parse(packets[0])
	r.Start(make([]byte, 0, 4096), &q)
	b.ReportAllocs()
	for b.Loop() {
		if lookup(c, &q, &r, 0) == missed {
			b.Fatal("a miss")
		}
	}
}

func BenchmarkHitParallel(b *testing.B) {
	c, packets := benchCache(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var q wire.Query
		var r wire.Reply
		buf := make([]byte, 0, 4096)
		for i := 0; pb.Next(); i++ {
			q.Parse(packets[i%benchNames])
			r.Start(buf, &q)
			if lookup(c, &q, &r, 0) == missed {
				b.Error("a miss")
				return
			}
			r.Finish(q.Limit())
		}
	})
}

// BenchmarkEvict measures a miss whose exchange costs nothing, in a full cache.
func BenchmarkEvict(b *testing.B) {
	cfg := defaults()
	cfg.Success.Entries = benchNames / 2
	c, packets := newCache(cfg, Options{}), make([][]byte, benchNames)
	exchanges := make([]ExchangeFunc, benchNames)
	for i := range packets {
		name := fmt.Sprintf("svc%d.default.svc.cluster.local.", i)
		q := question(b, name, dns.TypeA)
		packets[i], exchanges[i] = q.Packet, returns(response(b, q, message{answer: []string{name + " 3600 IN A 192.0.2.1"}}))
	}
	var q wire.Query
	var r wire.Reply
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		q.Parse(packets[i%benchNames])
		r.Start(buf, &q)
		if hit, err := c.Fetch(b.Context(), &q, &r, exchanges[i%benchNames]); hit || err != nil {
			b.Fatal(hit, err)
		}
	}
}

// BenchmarkFetch measures a miss whose exchange costs nothing.
func BenchmarkFetch(b *testing.B) {
	cfg := defaults()
	cfg.Success.Entries = 0
	c := newCache(cfg, Options{})
	q := question(b, "www.example.", dns.TypeA)
	ask := returns(response(b, q, message{answer: []string{addr}}))
	var r wire.Reply
	r.Start(make([]byte, 0, 4096), q)
	b.ReportAllocs()
	for b.Loop() {
		noError(b, fetchErr(c.Fetch(b.Context(), q, &r, ask)))
	}
}
