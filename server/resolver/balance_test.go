package resolver_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/balance"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestBalance: weights and preferred networks order the addresses of each reply, also of those from the cache, over
// both transports.
func TestBalance(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(file, []byte("www.example.org\n192.0.2.3 255\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		cfg     config.Loadbalance
		shuffle bool
		draw    uint32
		want    string
	}{
		{"weighted", config.Loadbalance{Weights: file}, false, 2, "192.0.2.3 192.0.2.2 192.0.2.1"},
		{"prefer", config.Loadbalance{Prefer: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32")}}, false, 0, "192.0.2.2 192.0.2.1 192.0.2.3"},
		{"prefer, shuffled", config.Loadbalance{Prefer: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("192.0.2.3/32")}}, true, 0, "192.0.2.2 192.0.2.3 192.0.2.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := balance.New(&tt.cfg, balance.Options{Random: func(uint32) uint32 { return tt.draw }})
			if err != nil {
				t.Fatal(err)
			}
			up := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, "192.0.2.1", "192.0.2.2", "192.0.2.3") })
			_, addr := start(t, server.Limits{}, &resolver.Zone{Name: wire.Root, Cache: resolvertest.Cache(), Forward: resolvertest.Pool(t, up.Addr()), Shuffle: tt.shuffle, Balance: b})
			for _, network := range []string{"udp", "tcp", "udp"} {
				var got []string
				for _, rr := range query(t, network, addr, question("www.example.org.", dns.TypeA)).Answer {
					got = append(got, rr.(*dns.A).A.String())
				}
				if strings.Join(got, " ") != tt.want {
					t.Errorf("%s: %v, want %s", network, got, tt.want)
				}
			}
		})
	}
}
