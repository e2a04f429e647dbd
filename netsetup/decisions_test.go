package netsetup

// Inside the package: these decisions are not exported.

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestCanonicalDeletion: a deletion that ignores missing objects is handled like the older one.
func TestCanonicalDeletion(t *testing.T) {
	const destroyTable = 26 // in linux/netfilter/nf_tables.h since Linux 6.3
	for _, tt := range []struct {
		name       string
		kind, want uint16
	}{
		{"table", destroyTable, unix.NFT_MSG_DELTABLE},
		{"chain", destroyTable + 1, unix.NFT_MSG_DELCHAIN},
		{"rule", destroyTable + 2, unix.NFT_MSG_DELRULE},
		{"set", destroyTable + 3, unix.NFT_MSG_DELSET},
		{"element", destroyTable + 4, unix.NFT_MSG_DELSETELEM},
		{"the kind before", destroyTable - 1, destroyTable - 1},
		{"the kind after", destroyTable + 5, destroyTable + 5},
		{"an old deletion", unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELRULE},
	} {
		if got := canonicalDeletion(tt.kind); got != tt.want {
			t.Errorf("%s: kind %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestMayCarryPods checks which interfaces with a default route may lead to pods.
func TestMayCarryPods(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	check.NoError(t, err)
	const none, other = -1, 3 // namespaces
	attrs := func(netns, lower int) netlink.LinkAttrs {
		return netlink.LinkAttrs{NetNsID: netns, ParentIndex: lower}
	}
	for _, tt := range []struct {
		name  string
		link  netlink.Link
		depth int
		want  bool
	}{
		{"device", &netlink.Device{LinkAttrs: attrs(none, 0)}, 1, false},
		{"veth on the node", &netlink.Veth{LinkAttrs: attrs(none, 0)}, 1, true},
		{"veth to a container", &netlink.Veth{LinkAttrs: attrs(other, 0)}, 1, false},
		{"macvlan of another namespace", &netlink.Macvlan{LinkAttrs: attrs(other, 0)}, 1, false},
		{"VLAN of a device", &netlink.Vlan{LinkAttrs: attrs(none, lo.Attrs().Index)}, 1, false},
		{"VLAN of a device, too deep", &netlink.Vlan{LinkAttrs: attrs(none, lo.Attrs().Index)}, 0, true},
		{"VLAN of nothing", &netlink.Vlan{LinkAttrs: attrs(none, 1<<30)}, 1, true},
		{"VLAN of another namespace", &netlink.Vlan{LinkAttrs: attrs(other, lo.Attrs().Index)}, 1, false},
		{"bridge", &netlink.Bridge{LinkAttrs: attrs(none, 0)}, 1, true},
	} {
		if got := mayCarryPods(tt.link, tt.depth); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestMissingAddrsIPVS: an address on kube-proxy's own interface is in use, also if it is on ours.
func TestMissingAddrsIPVS(t *testing.T) {
	address := netip.MustParsePrefix("10.96.0.10/32")
	ipvs, ours := Addr{Prefix: address, Interface: ipvsInterface}, Addr{Prefix: address, Interface: "nodelocaldns"}
	s := &Setup{plan: Plan{Interface: "nodelocaldns", Addresses: []netip.Prefix{address}}}
	for name, addrs := range map[string][]Addr{"before ours": {ipvs, ours}, "behind ours": {ours, ipvs}} {
		_, err := s.missingAddrs(addrs)
		want := "in use on " + ipvsInterface
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	if missing, err := s.missingAddrs([]Addr{ours}); err != nil || missing != nil {
		t.Errorf("on our interface: missing %v, error %v", missing, err)
	}
	if missing, err := s.missingAddrs(nil); err != nil || !slices.Equal(missing, s.plan.Addresses) {
		t.Errorf("nowhere: missing %v, error %v", missing, err)
	}
}

// TestDNATChainOfOtherFamily: no rules translate to servers of a family without local addresses.
func TestDNATChainOfOtherFamily(t *testing.T) {
	desired := desiredRules{
		addrs:     []netip.Addr{netip.MustParseAddr("fd00::53")},
		diversion: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:53")},
	}
	for f, want := range map[Family]bool{IPv4: false, IPv6: true} {
		if got := len(chainRules(desired, f, chain{table: "nat", name: divertChain})) > 0; got != want {
			t.Errorf("%v: rules %v, want %v", f, got, want)
		}
	}
}

// TestAdmissionComplete: a chain that drops packets needs all accept rules, with the mark of the desired
// rules and at their place; one that another process owns can have none.
func TestAdmissionComplete(t *testing.T) {
	desired := desiredRules{addrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, dnsPort: 53}
	rule := func(mark string) nftRule {
		return nftRule{line: `-A INPUT -m comment --comment "nodens: DNS ` + mark + `"`}
	}
	input := nftChain{family: "ip", table: "filter", name: "INPUT", hook: "input"}
	owned := input
	owned.owned = true
	right := []nftRule{rule(desired.mark()), rule(desired.mark())}
	for _, tt := range []struct {
		name string
		foreignChain
		want bool
	}{
		{"passes", foreignChain{nftChain: input}, true},
		{"drops", foreignChain{nftChain: input, drops: true}, false},
		{"accepts", foreignChain{nftChain: input, drops: true, ours: right}, true},
		{"accepts for nothing", foreignChain{nftChain: input, ours: right}, false},
		{"of another agent", foreignChain{nftChain: input, drops: true, ours: []nftRule{right[0], rule("0000")}}, false},
		{"too late", foreignChain{nftChain: input, drops: true, ours: right, place: placement{wrong: true}}, false},
		{"owned", foreignChain{nftChain: owned, drops: true}, true},
	} {
		if got := tt.complete(desired); got != tt.want {
			t.Errorf("%s: complete %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestPlanText: the plan names interfaces that pods may use too, and the rules' backend.
func TestPlanText(t *testing.T) {
	p := Plan{
		netfilter: NetfilterNftables, notExternal: []string{"br0 (bridge)"},
		rules: desiredRules{addrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, dnsPort: 53},
	}
	for _, want := range []string{"open      br0 (bridge): pods may use it too", "external  none", "table inet nodens"} {
		if text := p.Describe().String(); !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
