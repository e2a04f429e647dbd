// Package resolvertest makes the parts of a zone for tests of the query path and of the
// sockets before it: a scripted upstream, a pool that forwards to it, a cache and a hosts
// table. Everything ends with the test.
package resolvertest

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/test/fakedns"
	"github.com/nodens-dns/nodens/upstream"
)

// Backend is a scripted upstream on loopback. It is safe for concurrent use.
type Backend struct {
	*fakedns.Server

	mu    sync.Mutex
	asked map[string]int // by name
}

// StartBackend starts an upstream that answers with what reply returns; nil is silence. reply
// may block, and is called concurrently.
func StartBackend(tb testing.TB, reply func(q *dns.Msg) *dns.Msg) *Backend {
	tb.Helper()
	b := &Backend{asked: make(map[string]int)}
	b.Server = fakedns.Start(tb, func(q *fakedns.Query) {
		b.mu.Lock()
		b.asked[q.Msg.Question[0].Name]++
		b.mu.Unlock()
		go func() { // the server closes only after its handlers are done
			if m := reply(q.Msg); m != nil {
				q.Reply(m)
			}
		}()
	})
	return b
}

// Count returns how many queries for name there were.
func (b *Backend) Count(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[name]
}

// Asked returns how many queries for each name there were.
func (b *Backend) Asked() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.asked)
}

// Address answers every A question with one address and a TTL of a minute, and all others with no
// data.
func Address(ip string) func(*dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   net.ParseIP(ip),
			}}
		}
		return m
	}
}

// ZoneName parses a name.
func ZoneName(tb testing.TB, s string) wire.Name {
	tb.Helper()
	n, err := wire.ParseName(s)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// Pool returns what a zone needs to forward all names to these servers.
func Pool(tb testing.TB, to ...netip.AddrPort) []*upstream.Pool {
	tb.Helper()
	var targets []config.Target
	for _, addr := range to {
		targets = append(targets, config.Target{Addr: addr})
	}
	p := upstream.New(&config.Forward{
		From: wire.Root, To: targets, MaxFails: 2, Expire: 10 * time.Second,
		ReadTimeout: 2 * time.Second, HealthInterval: time.Second, HealthDomain: wire.Root,
	}, upstream.Options{})
	tb.Cleanup(func() { _ = p.Close() })
	return []*upstream.Pool{p}
}

// Cache returns a cache of 1,000 positive and as many negative answers.
func Cache() *cache.Cache {
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	return cache.NewStore(1<<20, cache.Options{}).NewCache(&config.Cache{Success: limits, Denial: limits, Servfail: 5 * time.Second})
}

// Hosts returns a hosts table of lines in the format of hosts(5). With fallThrough, other
// names go on to the next source.
func Hosts(tb testing.TB, fallThrough bool, lines ...string) *hosts.Table {
	tb.Helper()
	cfg := &config.Hosts{File: tb.TempDir() + "/none", Zones: []wire.Name{wire.Root}, Inline: lines, TTL: 3600}
	if fallThrough {
		cfg.Fallthrough = &config.Fallthrough{}
	}
	h, err := hosts.New(cfg, hosts.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return h
}
