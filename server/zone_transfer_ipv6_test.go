package server

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects sockets.

// TestTransferIPv6: a successor takes the sockets of an IPv6 address, and makes none of its own.
func TestTransferIPv6(t *testing.T) {
	z := &resolver.Zone{Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 www.test")}
	addr := netip.AddrPortFrom(netip.IPv6Loopback(), peer.Ports(t, 1)[0])
	routes := map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}
	s := New(slog.New(slog.DiscardHandler), Limits{})
	if err := s.Listen(routes); err != nil {
		t.Fatal(err)
	}
	ask := func(who string) {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			if m := query(t, network, addr, question("www.test.", dns.TypeA)); len(m.Answer) != 1 {
				t.Errorf("%s over %s: %v", who, network, m)
			}
		}
	}
	ask("the first server")
	before := inodesAt(t, addr)
	next := successor(t, s, Limits{}, routes)
	suspendInto(t, s, next)
	shutdown(t, s)
	ask("the successor")
	if after := inodesAt(t, addr); !slices.Equal(before, after) {
		t.Errorf("sockets %v, want the first server's, %v", after, before)
	}
	shutdown(t, next)
}

// inodesAt returns the inode of each listening or unconnected socket with the address, once, in
// order: duplicates of a descriptor have the same.
func inodesAt(t *testing.T, addr netip.AddrPort) (inodes []uint64) {
	t.Helper()
	for _, fd := range descriptorsAt(t, addr) {
		if _, err := unix.Getpeername(fd); err == nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, st.Ino)
	}
	slices.Sort(inodes)
	return slices.Compact(inodes)
}
