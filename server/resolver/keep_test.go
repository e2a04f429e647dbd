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
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// keepWorld is a Keeper of a.test., whose upstream answers with a TTL of 60 seconds unless it is down. The caches' clock is that of
// the Keeper.
type keepWorld struct {
	*counterDesk
	k       *resolver.Keeper
	backend *resolvertest.Backend
	down    atomic.Bool
	clock   time.Duration
}

func newKeepWorld(t *testing.T) *keepWorld {
	w := new(keepWorld)
	w.backend = resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := hinting(q)
		if w.down.Load() {
			m = new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		}
		return m
	})
	w.clock = time.Hour
	name := resolvertest.ZoneName(t, "a.test.")
	store := cache.NewStore(1<<20, cache.Options{
		Clock: func() time.Duration { return w.clock },
		Go:    func(f func(context.Context)) bool { f(t.Context()); return true }, // so that nothing is under way when Look returns
	})
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour, MinTTL: 5 * time.Second}
	z := &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, w.backend.Addr()), Cache: store.NewCache(&config.Cache{
		Success: limits, Denial: limits, Keep: []wire.Name{name}, Stale: config.Stale{ClientTimeout: time.Second, TTL: 30 * time.Second, Recheck: 30 * time.Second},
	})}
	w.k = resolver.NewKeeper([]wire.Name{name})
	w.k.Add(&resolver.Zone{Name: resolvertest.ZoneName(t, "other.")})
	w.k.Add(z)
	w.counterDesk = newDesk(t, z)
	return w
}

// look looks at the cache after d.
func (w *keepWorld) look(d time.Duration) {
	w.clock += d
	w.k.Look(w.clock)
}

// check checks how often the upstream was asked so far, and whether the name counts as expired.
func (w *keepWorld) check(step string, wantAsked, wantExpired int) {
	w.t.Helper()
	all, expired := w.k.Names()
	if asked := w.backend.CountName("a.test."); all != 1 || expired != wantExpired || asked != wantAsked {
		w.t.Errorf("%s: asked %d times, and %d of %d names have expired; want %d and %d", step, asked, expired, all, wantAsked, wantExpired)
	}
}

// TestKeep: a kept name is asked for at the start and before it expires, though no client asks. While the upstream fails, its answer
// is served, it counts as expired, and it is asked for every ten seconds.
func TestKeep(t *testing.T) {
	w := newKeepWorld(t)
	w.look(0)
	w.check("at the start", 2, 0)
	w.look(30 * time.Second)
	w.check("half of the TTL is left", 2, 0)
	w.look(20 * time.Second)
	w.check("a sixth is left", 4, 0)
	w.down.Store(true)
	w.look(50 * time.Second)
	w.check("a failure before the expiry", 6, 0)
	w.look(9 * time.Second)
	w.check("too early for another attempt", 6, 0)
	for i := range 3 {
		w.look(10 * time.Second)
		w.check("a failure after the expiry", 8+2*i, 1)
	}
	for range 2 {
		if got := told(w.from("10.0.0.1:53", resolver.UDP).ask(asked("a.test. A"))); got != "NOERROR | a.test. 30 A 192.0.2.1" {
			t.Errorf("while the upstream fails a client gets %s", got)
		}
	}
	asked := w.backend.CountName("a.test.")
	w.down.Store(false)
	w.look(10 * time.Second)
	w.check("it answers again", asked+2, 1) // which the next look sees
	w.look(time.Second)
	w.check("a second later", asked+2, 0)
}
