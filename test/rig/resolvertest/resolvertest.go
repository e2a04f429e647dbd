// Package resolvertest makes the parts of a zone for tests of the query path and of the
// sockets before it: a scripted upstream, a pool that forwards to it, a cache and a hosts
// table. Everything ends with the test.
package resolvertest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/upstream"
)

// Backend is a scripted upstream on loopback. It is safe for concurrent use.
type Backend struct{ *fakedns.Server }

// StartBackend starts an upstream that answers with what reply returns; nil is no reply. reply
// may block until the end of the test, and is called concurrently.
func StartBackend(tb testing.TB, reply func(q *dns.Msg) *dns.Msg) *Backend {
	tb.Helper()
	return &Backend{fakedns.Start(tb, func(q *fakedns.Query) {
		go func() { // not q.Go: the server would wait for a reply that blocks
			if m := reply(q.Msg); m != nil {
				q.Reply(m)
			}
		}()
	})}
}

// Asked returns how many queries for each name there were. Names are in lower case.
func (b *Backend) Asked() map[string]int {
	asked := make(map[string]int)
	for _, q := range b.Queries() {
		asked[q.Name]++
	}
	return asked
}

// Address answers every query for A records with one address and a TTL of a minute, and all
// others with NODATA.
func Address(ip string) func(*dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, ip) }
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
func Cache() *cache.Cache { return CacheIn(cache.NewStore(1<<20, cache.Options{})) }

// CacheIn is [Cache] in a store.
func CacheIn(store *cache.Store) *cache.Cache {
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	return store.NewCache(&config.Cache{Success: limits, Denial: limits, Servfail: 5 * time.Second})
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
