package resolver_test

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestLoopCountsRefused: while forwarding is stopped, the queries that are not forwarded are counted.
func TestLoopCountsRefused(t *testing.T) {
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	r := startRelay(t, loopback, addr)
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Forward: resolvertest.Pool(t, r.Addr())}
	z.Loop = newLoop(t, z.Forward, new(strings.Builder), fromServers)
	z.Loop.SetInterval(time.Hour) // it stays stopped
	s := server.New(slog.New(slog.DiscardHandler), server.Limits{})
	if err := s.Listen(map[server.ListenAddr]server.ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	r.loops.Store(true)
	watch(t, z.Loop)
	eventually(t, "forwarding to stop", z.Loop.Stopped)
	before := z.Loop.Refused()
	for _, name := range []string{"a.test.", "b.test."} {
		if m := query(t, "udp", addr, question(name, dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %v", name, m)
		}
	}
	if n := z.Loop.Refused() - before; n != 2 {
		t.Errorf("%d queries counted, want 2", n)
	}
}
