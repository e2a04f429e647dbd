package resolver_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// caching starts a server whose only zone has a cache as cfg says and forwards to b. now is
// the cache's clock; nil means the real one.
func caching(t *testing.T, cfg config.Cache, now func() time.Duration, b *resolvertest.Backend, bounds ...wire.Name) (c *cache.Cache, ask func(network, name string, qtype uint16) *dns.Msg) {
	t.Helper()
	var s atomic.Pointer[server.Server]
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}
	cfg.Success, cfg.Denial, cfg.Servfail = limits, limits, 5*time.Second
	c = cache.NewStore(1<<20, cache.Options{Clock: now, Go: func(f func(context.Context)) bool { return s.Load().Go(f) }}).NewCache(&cfg, bounds...)
	srv, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Cache: c, Forward: resolvertest.Pool(t, b.Addr())})
	s.Store(srv)
	return c, func(network, name string, qtype uint16) *dns.Msg {
		t.Helper()
		return query(t, network, addr, question(name, qtype))
	}
}

// passing answers with one address for a second, unless it is told to be silent.
func passing(silent *atomic.Bool) func(*dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		if silent.Load() {
			return nil
		}
		return shortLived(q)
	}
}

// shortLived answers with one address for a second.
func shortLived(q *dns.Msg) *dns.Msg {
	m := resolvertest.Address("192.0.2.1")(q)
	for _, rr := range m.Answer {
		rr.Header().Ttl = 1
	}
	return m
}

// heldUpstream answers as shortLived does, but while it is silent only after the release.
type heldUpstream struct {
	silent  atomic.Bool
	release chan struct{}
}

func (u *heldUpstream) reply(q *dns.Msg) *dns.Msg {
	if u.silent.Load() {
		<-u.release
	}
	return shortLived(q)
}

// TestServeStale: while no upstream answers, every query for what is known is answered.
func TestServeStale(t *testing.T) {
	for name, st := range map[string]config.Stale{
		"fallback":  {For: time.Hour, ClientTimeout: 50 * time.Millisecond, TTL: 30 * time.Second, Recheck: 30 * time.Second},
		"immediate": {For: time.Hour, Mode: config.StaleImmediate, TTL: 30 * time.Second, Recheck: time.Second},
		"verify":    {For: time.Hour, Mode: config.StaleVerify, ClientTimeout: 50 * time.Millisecond, TTL: 30 * time.Second},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(name+"/"+network, func(t *testing.T) { checkServeStale(t, st, network) })
		}
	}
}

func checkServeStale(t *testing.T, st config.Stale, network string) {
	u := heldUpstream{release: make(chan struct{})}
	b := resolvertest.StartBackend(t, u.reply)
	var now atomic.Int64
	now.Store(int64(time.Hour))
	c, ask := caching(t, config.Cache{Stale: st}, func() time.Duration { return time.Duration(now.Load()) }, b)
	ask(network, "www.example.org.", dns.TypeA)
	u.silent.Store(true)
	now.Add(int64(2 * time.Second)) // the answer has expired
	const queries = 3
	for range queries {
		m := ask(network, "www.example.org.", dns.TypeA)
		if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 || m.Answer[0].Header().Ttl != 30 {
			t.Fatalf("got\n%s", m)
		}
	}
	if n := c.Stats().Stale; n != queries {
		t.Errorf("%d are counted, %d came", n, queries)
	}
	u.silent.Store(false)
	close(u.release)
	eventually(t, "a new answer", func() bool {
		now.Add(int64(10 * time.Millisecond)) // until the upstream is asked again, if a query to it was lost
		return ask(network, "www.example.org.", dns.TypeA).Answer[0].Header().Ttl == 1
	})
}

// TestPrefetch: a name that is asked for all the time is never missed again.
func TestPrefetch(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			var silent atomic.Bool
			b := resolvertest.StartBackend(t, passing(&silent))
			c, ask := caching(t, config.Cache{Prefetch: config.Prefetch{Amount: 2, Within: time.Minute, Percent: 90}}, nil, b)
			eventually(t, "two in advance", func() bool {
				if m := ask(network, "www.example.org.", dns.TypeA); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
					t.Fatalf("got\n%s", m)
				}
				return c.Stats().Prefetches >= 2
			})
			eventually(t, "the upstream to be asked", func() bool { return b.CountName("www.example.org.") >= 3 })
		})
	}
}

// TestCut: what is below a name that does not exist is not asked for, unless another
// server may know it.
func TestCut(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		soa, _ := dns.NewRR("org. 600 IN SOA ns.org. admin.org. 1 2 3 4 600")
		m.Ns = []dns.RR{soa}
		return m
	})
	c, ask := caching(t, config.Cache{NXDomainCut: true}, nil, b, resolvertest.ZoneName(t, "corp.gone.org."))
	ask("udp", "gone.org.", dns.TypeA)
	for _, network := range []string{"udp", "tcp"} {
		m := ask(network, "Www.gone.org.", dns.TypeAAAA)
		if m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 || m.Question[0].Name != "Www.gone.org." {
			t.Errorf("over %s\n%s", network, m)
		}
	}
	if n, st := b.CountName("www.gone.org."), c.Stats(); n != 0 || st.Cuts != 2 {
		t.Errorf("asked for %d times, %d cuts", n, st.Cuts)
	}
	ask("udp", "www.corp.gone.org.", dns.TypeA)
	if n := b.CountName("www.corp.gone.org."); n != 1 {
		t.Errorf("what another server may know was asked for %d times", n)
	}
}
