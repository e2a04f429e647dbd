package netsetup

// Inside the package: facts about the kernel and its tools that the package relies on, each of which looked
// different before it was tried.

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// exchange sends a datagram from one address of this node to another and returns the one that it is seen to come
// from; "" if it does not arrive. between runs when the sockets are bound.
func exchange(t *testing.T, from, to string, between func()) string {
	t.Helper()
	server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
	check.NoError(t, err)
	defer server.Close()
	client, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)))
	check.NoError(t, err)
	defer client.Close()
	between()
	for range 20 {
		if _, err := client.WriteToUDPAddrPort([]byte("?"), netip.MustParseAddrPort(to)); err != nil {
			t.Log(err)
		}
		_ = server.SetReadDeadline(time.Now().Add(time.Second))
		if _, seen, err := server.ReadFromUDPAddrPort(make([]byte, 8)); err == nil {
			return seen.Addr().Unmap().String()
		}
	}
	return ""
}

func nothing() {}

// TestKernelFacts: see the comments on nftRaw and nftDNAT, [Setup.ensureAddrInterface] and [Setup.Teardown].
func TestKernelFacts(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		sh(t, "ip link set lo up; ip addr add 192.0.2.1/32 dev lo")
		t.Run("of chains with equal priority the newest runs first", func(t *testing.T) {
			sh(t, `nft '
table ip older { chain out { type filter hook output priority -300; udp dport 5300 meta mark set 1; }; }
table ip newer { chain out { type filter hook output priority -300; udp dport 5300 meta mark set 2; }; }
table ip last { chain out { type filter hook output priority 0; udp dport 5300 meta mark 1 counter accept; }; }'`)
			exchange(t, "127.0.0.1:0", "127.0.0.1:5300", nothing)
			if got := sh(t, "nft list table ip last"); strings.Contains(got, "packets 0") {
				t.Errorf("the older chain does not run last:\n%s", got)
			}
			sh(t, "nft flush ruleset")
		})
		t.Run("chains of type nat run at -100", func(t *testing.T) {
			sh(t, `nft '
table ip nat { chain out { type nat hook output priority 200; udp dport 5301 dnat to 127.0.0.1:5302; }; }
table ip filter { chain out { type filter hook output priority -50; udp dport 5302 counter accept; }; }'`)
			conn, err := net.Dial("udp", "127.0.0.1:5301")
			check.NoError(t, err)
			defer conn.Close()
			_, _ = conn.Write([]byte("?"))
			if got := sh(t, "nft list table ip filter"); strings.Contains(got, "packets 0") {
				t.Errorf("a filter at -50 sees a destination that is not translated:\n%s", got)
			}
			sh(t, "nft flush ruleset")
		})
		t.Run("an IPv4 address answers while its interface is down", func(t *testing.T) {
			sh(t, "ip link add dn0 type veth peer name dn1; ip addr add 169.254.20.10/32 dev dn0")
			if got := exchange(t, "192.0.2.1:0", "169.254.20.10:53", nothing); got != "192.0.2.1" {
				t.Errorf("seen from %q", got)
			}
		})
		t.Run("an IPv6 address sends after its removal", func(t *testing.T) {
			sh(t, "ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up")
			sh(t, "ip addr add fd00::a/128 dev up0 nodad; ip addr add fd00::b/128 dev lo nodad")
			if got := exchange(t, "[fd00::a]:0", "[fd00::b]:53", func() { sh(t, "ip addr del fd00::a/128 dev up0") }); got != "fd00::a" {
				t.Errorf("seen from %q", got)
			}
		})
	})
}

// TestIptablesPrintsLess: iptables prints two rules of nft that differ as one and the same, with status 0. The
// backend, which reads them by netlink, tells them apart.
func TestIptablesPrintsLess(t *testing.T) {
	inNftNamespace(t, func(t *testing.T) {
		sh(t, `iptables-nft -P INPUT ACCEPT; for n in 100 200; do nft add rule ip filter INPUT udp length $n drop; done`)
		if got := sh(t, "iptables-nft -S INPUT"); strings.Count(got, "-A INPUT -p udp -j DROP\n") != 2 {
			t.Logf("this version of iptables prints\n%s", got)
		}
		lines, err := nftProgram{openTool(t, "iptables-nft")}.list(t.Context(), "filter", "INPUT")
		if err != nil || len(lines) != 3 || lines[1] == lines[2] {
			t.Errorf("%q, %v; want two rules that differ", lines, err)
		}
	})
}

// TestBuiltInChainIsNeverMissing: go-iptables says that a chain does not exist when the program fails for another
// reason. The backend does not take INPUT for empty, which would have it write forever.
func TestBuiltInChainIsNeverMissing(t *testing.T) {
	fakeTool(t, "tool", `echo "iptables: No chain/target/match by that name." >&2; exit 1`)
	b := iptablesBackend{mode: "legacy", tableLoaded: func(Family, string) bool { return true }}
	b.programs[IPv4] = openTool(t, "tool")
	n, err := b.ensure(t.Context(), desiredRules{addrs: []netip.Addr{defaultAddr}, dnsPort: 53})
	if n > 0 || err == nil || errors.Is(err, errNoChain) || !strings.Contains(err.Error(), "built-in chain INPUT") {
		t.Errorf("ensure = %d, %v", n, err)
	}
}
