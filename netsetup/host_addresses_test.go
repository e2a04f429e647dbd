// These tests use describe and closeOwnerTable, which are not exported.

package netsetup

// Inside the package: the tests use desired rules, which are not exported.

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
)

var (
	hostAddr  = netip.MustParseAddr("169.254.20.11")
	hostAddr6 = netip.MustParseAddr("fd00::b")
	// oldServers are the servers of a node, labServers those of the cluster DNS.
	oldServers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:53")}
	labServers = []netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:53")}
)

// hostStack is dualStack with an address for the node's own look-ups.
func hostStack() Config {
	c := dualStack()
	c.HostAddresses = []netip.Addr{hostAddr}
	return c
}

// natLines returns the lines about nat of a description, without comments.
func natLines(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "DIVERT") || strings.Contains(line, "divert") || strings.Contains(line, "DNAT") || strings.Contains(line, "dnat") || strings.Contains(line, "MASQ") || strings.Contains(line, "masq") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// TestHostDiversion: queries to the host's address go to the node's servers, all others to the cluster DNS, in both
// syntaxes. Without servers of an address's family there is no rule for it.
func TestHostDiversion(t *testing.T) {
	desired := desiredRules{
		addrs: []netip.Addr{netip.MustParseAddr("169.254.20.10"), hostAddr, hostAddr6}, hosts: []netip.Addr{hostAddr, hostAddr6},
		dnsPort: 53, matchSocket: true, diversion: labServers, hostDiversion: oldServers,
	}
	check.Equal(t, `:NODENS-DIVERT - [0:0]
:NODENS-HOST-DIVERT - [0:0]
-A NODENS-PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NODENS-DIVERT
-A NODENS-PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NODENS-DIVERT
-A NODENS-PREROUTING -d 169.254.20.11/32 -p udp -m udp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-PREROUTING -d 169.254.20.11/32 -p tcp -m tcp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-OUTPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j NODENS-DIVERT
-A NODENS-OUTPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j NODENS-DIVERT
-A NODENS-OUTPUT -d 169.254.20.11/32 -p udp -m udp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-OUTPUT -d 169.254.20.11/32 -p tcp -m tcp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-POSTROUTING -s 169.254.20.10/32 ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE
-A NODENS-POSTROUTING -s 169.254.20.11/32 ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE
-A NODENS-DIVERT -p udp -m udp -j DNAT --to-destination 10.1.1.1:53
-A NODENS-DIVERT -p tcp -m tcp -j DNAT --to-destination 10.1.1.1:53
-A NODENS-HOST-DIVERT -p udp -m udp -j DNAT --to-destination 192.0.2.1:53
-A NODENS-HOST-DIVERT -p tcp -m tcp -j DNAT --to-destination 192.0.2.1:53
:NODENS-HOST-DIVERT - [0:0]
-A NODENS-PREROUTING -d fd00::b/128 -p udp -m udp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-PREROUTING -d fd00::b/128 -p tcp -m tcp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-OUTPUT -d fd00::b/128 -p udp -m udp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-OUTPUT -d fd00::b/128 -p tcp -m tcp --dport 53 -j NODENS-HOST-DIVERT
-A NODENS-POSTROUTING -s fd00::b/128 ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE
-A NODENS-HOST-DIVERT -p udp -m udp -j DNAT --to-destination [2001:db8::1]:53
-A NODENS-HOST-DIVERT -p tcp -m tcp -j DNAT --to-destination [2001:db8::1]:53`, natLines((&iptablesBackend{}).describe(desired)), "iptables")
	check.Equal(t, `ip daddr 169.254.20.10 udp dport 53 jump nat-divert
ip daddr 169.254.20.10 tcp dport 53 jump nat-divert
ip daddr 169.254.20.11 udp dport 53 jump nat-host-divert
ip daddr 169.254.20.11 tcp dport 53 jump nat-host-divert
ip6 daddr fd00::b udp dport 53 jump nat-host-divert
ip6 daddr fd00::b tcp dport 53 jump nat-host-divert
ip daddr 169.254.20.10 udp dport 53 jump nat-divert
ip daddr 169.254.20.10 tcp dport 53 jump nat-divert
ip daddr 169.254.20.11 udp dport 53 jump nat-host-divert
ip daddr 169.254.20.11 tcp dport 53 jump nat-host-divert
ip6 daddr fd00::b udp dport 53 jump nat-host-divert
ip6 daddr fd00::b tcp dport 53 jump nat-host-divert
ip saddr 169.254.20.10 oifname != "lo" ct status dnat masquerade
ip saddr 169.254.20.11 oifname != "lo" ct status dnat masquerade
ip6 saddr fd00::b oifname != "lo" ct status dnat masquerade
chain nat-divert {
meta nfproto ipv4 meta l4proto udp dnat ip to 10.1.1.1:53
meta nfproto ipv4 meta l4proto tcp dnat ip to 10.1.1.1:53
chain nat-host-divert {
meta nfproto ipv4 meta l4proto udp dnat ip to 192.0.2.1:53
meta nfproto ipv4 meta l4proto tcp dnat ip to 192.0.2.1:53
meta nfproto ipv6 meta l4proto udp dnat ip6 to [2001:db8::1]:53
meta nfproto ipv6 meta l4proto tcp dnat ip6 to [2001:db8::1]:53`, withoutComments(natLines(newNftBackend(nil).describe(desired))), "nftables")

	desired.diversion = nil
	if got := natLines((&iptablesBackend{}).describe(desired)); strings.Contains(got, "20.10") || strings.Contains(got, "NODENS-DIVERT") || !strings.Contains(got, "-d 169.254.20.11/32") {
		t.Errorf("without endpoints of the cluster DNS:\n%s", got)
	}
	desired.diversion, desired.hostDiversion = labServers, nil
	if got := natLines((&iptablesBackend{}).describe(desired)); strings.Contains(got, "20.11") || strings.Contains(got, "HOST-DIVERT") || !strings.Contains(got, "-d 169.254.20.10/32") {
		t.Errorf("without servers of the node:\n%s", got)
	}
	desired.hosts, desired.hostDiversion = nil, oldServers
	if got := natLines((&iptablesBackend{}).describe(desired)); strings.Contains(got, "HOST-DIVERT") {
		t.Errorf("without an address for the node:\n%s", got)
	}
}

// withoutComments removes the comments of rules in the syntax of nft.
func withoutComments(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " comment ")
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

// TestHostAddresses: the addresses are checked like those of --localip, under their own flag.
func TestHostAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1":     "--host-listen: 127.0.0.1 is on every machine already",
		"224.0.0.1":     "--host-listen: 224.0.0.1 is not a unicast address",
		"169.254.20.10": "--host-listen: 169.254.20.10 is given twice",
		"fe80::1":       "--host-listen: fe80::1 is valid on one interface only",
	} {
		c := dualStack()
		c.HostAddresses = []netip.Addr{netip.MustParseAddr(text)}
		if _, err := NewPlan(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	c := hostStack()
	c.Addresses = nil // the agent answers the node alone
	p, err := NewPlan(c)
	if err != nil || len(p.Addresses) != 1 || p.Addresses[0] != netip.PrefixFrom(hostAddr, 32) {
		t.Errorf("got %+v, %v", p, err)
	}
}

// TestDivertHost: the two diversions are apart, and servers that packets can't be sent to are left out.
func TestDivertHost(t *testing.T) {
	node := newFakeNode()
	s := newSetup(t, hostStack(), node)
	apply(t, s)
	to := append([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53"), netip.AddrPortFrom(hostAddr, 53)}, oldServers...)
	check.NoError(t, s.DivertHost(t.Context(), to))
	check.NoError(t, s.Divert(t.Context(), servers))
	wantComplete(t, node, s, "both")
	dump := node.dump()
	for _, want := range []string{"iptables nat -A NODENS-HOST-DIVERT", "192.0.2.1:53", "iptables nat -A NODENS-DIVERT"} {
		if !strings.Contains(dump, want) {
			t.Errorf("%s is missing in\n%s", want, dump)
		}
	}
	if strings.Contains(dump, "127.0.0.1:53") || s.Stats().HostDiversion != 2 {
		t.Errorf("%d servers:\n%s", s.Stats().HostDiversion, dump)
	}
	// Each change forgets the entries of its own addresses, not those of the others.
	last := len(node.conntrackAddrs) - 1
	check.Equal(t, fmt.Sprint([]netip.Addr{hostAddr}, diversionTargets(oldServers, nil)), fmt.Sprint(node.conntrackAddrs[last], node.conntrackTargets[last]), "the entries to delete")
	check.NoError(t, s.Divert(t.Context(), servers[:1]))
	check.Equal(t, fmt.Sprint(dualStack().Addresses, servers[:1]), fmt.Sprint(node.conntrackAddrs[last+1], node.conntrackTargets[last+1]), "the entries to delete")
	check.NoError(t, s.DivertHost(t.Context(), nil)) // keeps the last ones
	if s.Stats().HostDiversion != 2 {
		t.Error("the servers are forgotten")
	}
	check.NoError(t, newSetup(t, dualStack(), newFakeNode()).DivertHost(t.Context(), oldServers))
}

// TestKernelHostDiversion: without an agent, each address leads to its own servers.
func TestKernelHostDiversion(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		startSubprocess(t, "cluster")
		runLines(t, `ip link set lo up
			ip addr add 10.0.0.1/24 dev v0
			ip -6 addr add fd10::1/64 dev v0 nodad
			ip link set v0 up`)
		for _, backend := range []Netfilter{NetfilterAuto, NetfilterNftables} {
			c := hostStack()
			c.Netfilter = backend
			s := newSetup(t, c, nil)
			check.NoError(t, s.EnsureInterface(t.Context()))
			check.NoError(t, s.Divert(t.Context(), []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:53"), netip.MustParseAddrPort("[fd10::2]:53")}))
			check.NoError(t, s.DivertHost(t.Context(), []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:53")}))
			check.NoError(t, s.EnsureRules(t.Context()))
			s.closeOwnerTable() // as the end of the process does
			for addr, want := range map[netip.Addr]string{c.Addresses[0]: "cluster", c.Addresses[1]: "cluster", hostAddr: "host"} {
				for _, network := range []string{"udp", "tcp"} {
					if got := ask(network, netip.AddrPortFrom(addr, 53)); got != want {
						t.Errorf("%s: %v over %s: %q, want %q", backend, addr, network, got, want)
					}
				}
			}
			check.NoError(t, s.Teardown(0, nil))
			if got := dumpRules(t, IPv4); strings.Contains(got, "NODENS") {
				t.Errorf("left behind:\n%s", got)
			}
		}
	})
}
