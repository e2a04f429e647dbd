package netsetup

// Inside the package: these decisions are not exported.

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
	if err != nil {
		t.Fatal(err)
	}
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

// TestNftStateChanges: a chain that only one of two states has counts as a change, like one that
// differs; a chain that drops packets without our rules is not complete.
func TestNftStateChanges(t *testing.T) {
	input := foreignChain{nftChain: nftChain{family: "ip", table: "filter", name: "INPUT", hook: "input"}}
	dropping := input
	dropping.drops = true
	desired := desiredRules{addrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, dnsPort: 53}
	written := map[string]int{ownComment + desired.mark(): 4}
	none, open, closed := nftState{own: "table"}, nftState{own: "table", marks: written, chains: []foreignChain{input}}, nftState{own: "table", marks: written, chains: []foreignChain{dropping}}
	for _, tt := range []struct {
		name string
		a, b nftState
		want int
	}{
		{"equal", open, open, 0}, {"added", none, open, 1}, {"removed", open, none, 1}, {"changed", open, closed, 1}, {"ours", none, nftState{}, 1},
	} {
		if got := tt.a.countChanges(tt.b); got != tt.want {
			t.Errorf("%s: %d changes, want %d", tt.name, got, tt.want)
		}
	}
	if !open.isComplete(desired) || closed.isComplete(desired) {
		t.Errorf("complete: %v without drops, %v with drops; want true, false", open.isComplete(desired), closed.isComplete(desired))
	}
}

// TestPlanText: the plan names interfaces that pods may use too, and the rules' backend.
func TestPlanText(t *testing.T) {
	p := Plan{
		netfilter: NetfilterNftables, notExternal: []string{"br0 (bridge)"},
		rules: desiredRules{addrs: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, dnsPort: 53},
	}
	for _, want := range []string{"open      br0 (bridge): pods may use it too", "external  none", "table inet nodens"} {
		if text := p.String(); !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
