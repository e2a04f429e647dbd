package resolver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestTunnelLimit: over each path of a miss, names with data make a suspect, whose further names below the domain are refused; answers
// from the cache, names below other domains and explanations are not counted and not refused.
func TestTunnelLimit(t *testing.T) {
	for name, network := range map[string]string{"started by the reader": "udp", "by a worker": "tcp"} {
		t.Run(name, func(t *testing.T) {
			b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
			d := tunnel.New(&config.Tunnel{Names: 50, Bytes: 1 << 10, Window: 60e9, Limit: 1}, tunnel.Options{Owner: func(netip.Addr) tunnel.Owner { return tunnel.Owner{Namespace: "(host)"} }})
			z := &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Cache: epochCache(), Tunnel: d}
			_, addr := start(t, server.Limits{}, z)
			refused := 0
			for i := range 150 {
				m := query(t, network, addr, asked(fmt.Sprintf("%s%d.evil.test. A edns", strings.Repeat("x", 40), i)))
				switch told(m) {
				case "REFUSED +15:15 (Blocked): ()":
					refused++
				default:
					if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
						t.Fatalf("query %d gets %v", i, m)
					}
				}
			}
			if refused < 50 || uint64(refused) != d.Limited() {
				t.Errorf("%d of 150 queries were refused, and %d are counted", refused, d.Limited())
			}
			for _, fine := range []string{strings.Repeat("x", 40) + "0.evil.test.", "www.fine.test."} {
				if m := query(t, network, addr, question(fine, dns.TypeA)); m.Rcode != dns.RcodeSuccess {
					t.Errorf("%s gets %v", fine, m)
				}
			}
			var refusals uint64
			z.Stats.EachResponse(func(rcode, plugin string, n uint64) {
				if plugin == "tunnel" {
					refusals += n
				}
			})
			if refusals != d.Limited() {
				t.Errorf("%d replies are counted as those of tunnel", refusals)
			}
		})
	}
}
