package server

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/peer"
)

// shelf is a kernel that keeps the names of what it is given.
type shelf struct {
	cached *epoch.Table

	mu    sync.Mutex
	names []string
}

func (k *shelf) Put(a *kernelpath.Answer) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names = append(k.names, wire.Name(a.Query.Name()).String())
	return true
}
func (k *shelf) Clear()                                   {}
func (k *shelf) SetDoors(map[netip.AddrPort]uint32) error { return nil }
func (k *shelf) Epochs() (cluster, cached *epoch.Table)   { return nil, k.cached }

// TestNoCopiesBesideViews: an answer is not copied where another client would get that of
// a view, for the same name or for the names above it.
func TestNoCopiesBesideViews(t *testing.T) {
	up := startBackend(t, addressed("192.0.2.1"))
	epochs := epoch.New(make([]atomic.Uint64, epoch.Words(1)), 0, 1)
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}
	store := cache.NewStore(1<<20, cache.Options{Epochs: epochs})
	zone := func(name string, view *View) *Zone {
		c := store.NewCache(&config.Cache{Success: limits, Denial: limits})
		return &Zone{Name: zoneName(t, name), View: view, Cache: c, Forward: pool(t, up.addr), Stats: NewStats()}
	}
	nobody := func() *View { return viewOf(t, "nobody", "type() == 'NONE'") }
	for name, tt := range map[string]struct {
		zones  []*Zone
		copied bool
	}{
		"no view":           {[]*Zone{zone("a.test.", nil)}, true},
		"for the same name": {[]*Zone{zone("a.test.", nobody()), zone("a.test.", nil)}, false},
		"for a name below":  {[]*Zone{zone("a.test.", nobody()), zone(".", nil)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			kernel, addr := &shelf{cached: epochs}, netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
			s := New(slog.New(slog.DiscardHandler), Limits{Readers: 1})
			s.UseKernel(kernel)
			if err := s.Listen(map[netip.AddrPort]*Routes{addr: NewRoutes(tt.zones, NewStats())}); err != nil {
				t.Fatal(err)
			}
			defer shutdown(t, s)
			for range 3 { // the first waits, the second is from the cache, the last finds it copied
				if m := query(t, "udp", addr, question("www.a.test.", dns.TypeA)); len(m.Answer) != 1 {
					t.Fatal(m)
				}
			}
			kernel.mu.Lock()
			defer kernel.mu.Unlock()
			if copied := len(kernel.names) > 0; copied != tt.copied {
				t.Errorf("copies %q, want some: %v", kernel.names, tt.copied)
			}
		})
	}
}
