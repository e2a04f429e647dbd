// These tests use udpReader, which is not exported.

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/server/udp"
)

// hotCounts is what a server has counted.
type hotCounts struct {
	Requests, Responses map[string]uint64
	Sizes               map[string]uint64 // sums
	Queries             uint64            // with a duration
	Cache               cache.Kinds
	Clients             map[string]uint64
}

// countsOf returns what l's only zone has counted.
func countsOf(l *listener) (c hotCounts) {
	rt := l.config.Load().Routes
	c = hotCounts{Requests: map[string]uint64{}, Responses: map[string]uint64{}, Sizes: map[string]uint64{}, Clients: map[string]uint64{}}
	for z := range rt.Zones() {
		z.Stats.EachRequest(func(proto, family, qtype string, n uint64) { c.Requests[proto+family+qtype] += n })
		z.Stats.EachResponse(func(rcode, plugin string, n uint64) { c.Responses[rcode+plugin] += n })
		c.Queries += z.Stats.Duration().Count
		c.Cache = z.Cache.Stats().Hits
	}
	for _, row := range rt.Clients.Report(clients.Pods, clients.Hour).Clients {
		for _, addr := range row.Addrs {
			c.Clients[addr.String()] += row.Total.Hits
		}
	}
	return c
}

// kept returns what the reader keeps.
func (u *udpReader) kept() *keptReplies { return u.reused.sink.(*keptReplies) }

// keptHits returns how many packets of a batch the reader answers without the path.
func (u *udpReader) keptHits() (n int) {
	cfg := u.l.config.Load()
	u.request.Arrival = clock.Now()
	u.reused.begin(cfg, u.request.Arrival)
	for i := range u.batch.Packets[:u.batch.N] {
		before := len(u.kept().hits)
		u.answer(cfg, &u.batch.Packets[i])
		n += len(u.kept().hits) - before
	}
	u.reused.end(cfg.Routes, u.request.Arrival)
	return n
}

// TestKeptRepliesAreCounted: counters are the same whether the path or a kept reply answers, and exact after each batch.
func TestKeptRepliesAreCounted(t *testing.T) {
	var counts []hotCounts
	for _, kept := range []bool{false, true} {
		_, l, packet := hotServer(t, kept)
		u := hotReader(l, 0, packet)
		for batch := range 20 {
			u.answerBatch()
			if n := countsOf(l).Cache.Success; n != uint64(batch+1)*udp.BatchSize {
				t.Errorf("kept: %v: after %d batches %d hits are counted", kept, batch+1, n)
			}
		}
		counts = append(counts, countsOf(l))
	}
	if diff := cmp.Diff(counts[0], counts[1]); diff != "" {
		t.Errorf("counters differ (-path +kept):\n%s", diff)
	}
}

// TestKeptRepliesEnd: the path answers again when the answer in the cache is replaced, or is flushed, when another
// configuration is served, and while queries are watched.
func TestKeptRepliesEnd(t *testing.T) {
	_, l, packet := hotServer(t, true)
	u := hotReader(l, 0, packet)
	_ = u.keptHits()
	check := func(when string, want int) {
		t.Helper()
		if n := u.keptHits(); n != want {
			t.Errorf("%s: %d of %d queries are answered without the path, want %d", when, n, udp.BatchSize, want)
		}
	}
	check("when it is kept", udp.BatchSize)
	rt := l.config.Load().Routes
	name := []byte("\x03hot\x04test\x00")
	for z := range rt.Zones() {
		z.Cache.Flush(name, false)
	}
	check("after a flush", 0)
	fillCache(t, l, packet)
	check("when it is asked for again", udp.BatchSize-1)
	check("when it is kept again", udp.BatchSize)
	l.config.Store(&activeConfig{ListenerConfig: ListenerConfig{Routes: rt}})
	check("with another configuration", udp.BatchSize-2)
	rt.Tail = new(tail.Feed)
	watcher, err := rt.Tail.Subscribe(tail.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	check("while queries are watched", 0)
	watcher.Close()
	check("when nobody watches", udp.BatchSize)
	rt.StartWaiting = true
	check("where each query waits", 0)
}

// TestKeptRepliesStayCached: the cache does not evict an answer whose reply is in use, however many other names are asked for.
func TestKeptRepliesStayCached(t *testing.T) {
	for _, entries := range []int{32, 1000} {
		s, l, packet := hotServer(t, true)
		store := cache.NewStore(1<<20, cache.Options{Epochs: s.replyCaches.tables.Cached})
		for z := range l.config.Load().Routes.Zones() {
			limits := config.CacheLimits{Entries: entries, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
			z.Cache = store.NewCache(&config.Cache{Success: limits, Denial: limits})
			fillCache(t, l, packet)
		}
		u := hotReader(l, 0, packet)
		u.batch.N = 1
		for n := range 3 * entries {
			if hits := u.keptHits(); n > 1 && hits != 1 {
				t.Fatalf("%d entries: the path is asked again after %d other names", entries, 5*n)
			}
			for i := range 5 {
				other, err := question(fmt.Sprintf("n%d-%d.test.", n, i), dns.TypeA).Pack()
				if err != nil {
					t.Fatal(err)
				}
				fillCache(t, l, other)
			}
		}
	}
}

// TestKeptRepliesNeedPermission: replies of zones whose queries the path has to see are not kept.
func TestKeptRepliesNeedPermission(t *testing.T) {
	for name, change := range map[string]func(z *resolver.Zone){
		"client_limit": func(z *resolver.Zone) { z.AgentOnly = []string{"client_limit"} },
		"log":          func(z *resolver.Zone) { z.Log = new(resolver.QueryLog) },
		"acl":          func(z *resolver.Zone) { z.ACL = new(resolver.ACL) },
	} {
		t.Run(name, func(t *testing.T) {
			_, l, packet := hotServer(t, true)
			for z := range l.config.Load().Routes.Zones() {
				change(z)
				l.config.Store(&activeConfig{ListenerConfig: ListenerConfig{Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}})
			}
			u := hotReader(l, 0, packet)
			for range 3 {
				if n := u.keptHits(); n != 0 {
					t.Fatalf("%d queries are answered without the path", n)
				}
			}
		})
	}
}

// TestKeptReplyPanics: after a panic in the replies that are kept, the path answers.
func TestKeptReplyPanics(t *testing.T) {
	s, l, packet := hotServer(t, true)
	u := hotReader(l, 0, packet)
	_ = u.keptHits()
	u.kept().cache = nil
	if n := u.keptHits(); n != udp.BatchSize-3 {
		t.Errorf("%d queries are answered without the path, want all but the one of the panic and two more", n)
	}
	if n := s.panics.Load(); n != 1 {
		t.Errorf("%d panics are counted", n)
	}
	cfg := l.config.Load()
	u.answer(cfg, &u.batch.Packets[0])
	if len(u.kept().hits) != 1 {
		t.Errorf("%d hits", len(u.kept().hits))
	}
	u.kept().cache = nil
	u.reused.end(cfg.Routes, u.request.Arrival)
	u.kept().cache, u.kept().config = nil, nil
	u.reused.begin(cfg, u.request.Arrival)
	if n := s.panics.Load(); n != 3 {
		t.Errorf("%d panics are counted, want 3", n)
	}
	for i := range u.batch.Packets[:u.batch.N] {
		if m := new(dns.Msg); m.Unpack(u.batch.Packets[i].Reply) != nil || len(m.Answer) != 1 {
			t.Errorf("packet %d gets %v", i, m)
		}
	}
}

// TestKeptRepliesOfHosts: an answer of a hosts table, and one of the cache behind it, are kept until the file is read again.
func TestKeptRepliesOfHosts(t *testing.T) {
	for name, qname := range map[string]string{"in the table": "listed.test.", "in the cache": "hot.test."} {
		t.Run(name, func(t *testing.T) {
			s, l, packet := hotServer(t, true)
			file := filepath.Join(t.TempDir(), "hosts")
			write := func(text string) {
				t.Helper()
				if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
					t.Fatal(err)
				}
			}
			write("192.0.2.7 listed.test\n")
			table, err := hosts.New(&config.Hosts{File: file, Zones: []wire.Name{wire.Root}, TTL: 60, Reload: time.Millisecond, Fallthrough: new(config.Fallthrough)}, hosts.Options{Epochs: s.replyCaches.tables.Cluster})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { table.Run(ctx) })
			defer running.Wait()
			defer cancel()
			for z := range l.config.Load().Routes.Zones() {
				z.Hosts = table
				l.config.Store(&activeConfig{ListenerConfig: ListenerConfig{Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}})
			}
			if qname != "hot.test." {
				if packet, err = question(qname, dns.TypeA).Pack(); err != nil {
					t.Fatal(err)
				}
			}
			u := hotReader(l, 0, packet)
			eventually(t, "the reply to be kept", func() bool { return u.keptHits() == udp.BatchSize })
			write("192.0.2.8 listed.test hot.test\n")
			eventually(t, "the answer of the changed file", func() bool {
				_ = u.keptHits()
				m := new(dns.Msg)
				if err := m.Unpack(u.batch.Packets[0].Reply); err != nil || len(m.Answer) != 1 {
					t.Fatalf("%v, %v", m, err)
				}
				a, ok := m.Answer[0].(*dns.A)
				return ok && a.A.String() == "192.0.2.8"
			})
			if n := u.keptHits(); n < udp.BatchSize-2 {
				t.Errorf("%d queries are answered without the path after the change", n)
			}
		})
	}
}
