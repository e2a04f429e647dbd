// These tests use deleteConntrack, kernelNode and originalDst, which are not exported.

package netsetup

// Inside the package: parsing connection-tracking entries is not exported.

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// addConntrackEntry makes an entry of connection tracking: from a client's port to asked, led to
// answers.
func addConntrackEntry(t *testing.T, protocol uint8, port uint16, asked, answers netip.AddrPort) {
	t.Helper()
	client := net.ParseIP("10.244.1.9").To4()
	family := netlink.InetFamily(unix.AF_INET)
	if asked.Addr().Is6() {
		client, family = net.ParseIP("fd00:244::9"), unix.AF_INET6
	}
	f := netlink.ConntrackFlow{
		FamilyType: uint8(family),
		Forward: netlink.IPTuple{Protocol: protocol, SrcIP: client, SrcPort: port,
			DstIP: asked.Addr().AsSlice(), DstPort: asked.Port()},
		Reverse: netlink.IPTuple{Protocol: protocol, SrcIP: answers.Addr().AsSlice(), SrcPort: answers.Port(),
			DstIP: client, DstPort: port},
		TimeOut: 100,
	}
	if protocol == unix.IPPROTO_TCP {
		f.ProtoInfo = &netlink.ProtoInfoTCP{State: 3} // established
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, &f); err != nil {
		t.Fatalf("port %d: %v", port, err)
	}
}

// trackedPorts are the ports of the clients of all entries.
func trackedPorts(t *testing.T) (ports []uint16) {
	t.Helper()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		check.NoError(t, err)
		for _, f := range list {
			ports = append(ports, f.Forward.SrcPort)
		}
	}
	slices.Sort(ports)
	return ports
}

// TestDeleteConntrack: of all that is tracked only queries over UDP to the agent's addresses are
// forgotten, and of these only those that lead to a server that is none any more.
func TestDeleteConntrack(t *testing.T) {
	if os.Getenv(namespaceEnv) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root to make a network namespace")
		}
		t.Parallel()
		rerunInNetns(t, namespaceEnv+"=1")
		return
	}
	addrPort := netip.MustParseAddrPort
	local, local6 := addrPort("169.254.20.10:53"), addrPort("[fd00::a]:53")
	gone, gone6 := addrPort("10.244.2.3:53"), addrPort("[fd00:244::3]:53")
	for port, entry := range map[uint16]struct {
		protocol       uint8
		asked, answers netip.AddrPort
	}{
		1: {unix.IPPROTO_UDP, local, gone},
		2: {unix.IPPROTO_UDP, local, servers[0]},
		3: {unix.IPPROTO_UDP, local, netip.AddrPortFrom(servers[0].Addr(), 54)},
		4: {unix.IPPROTO_UDP, local, local},
		5: {unix.IPPROTO_UDP, addrPort("169.254.20.10:54"), gone},
		6: {unix.IPPROTO_UDP, addrPort("10.96.0.10:53"), gone},
		7: {unix.IPPROTO_TCP, local, gone},
		8: {unix.IPPROTO_UDP, local6, gone6},
		9: {unix.IPPROTO_UDP, local6, servers[2]},
	} {
		addConntrackEntry(t, entry.protocol, port, entry.asked, entry.answers)
	}
	k := &kernelNode{}
	locals := []netip.Addr{local.Addr(), local6.Addr()}
	if n, err := k.deleteConntrack(locals, 53, servers); n != 3 || err != nil {
		t.Errorf("%d forgotten, error %v, want 3", n, err)
	}
	check.Equal(t, []uint16{2, 4, 5, 6, 7, 9}, trackedPorts(t), "clients' ports that are left")
	if n, err := k.deleteConntrack(locals, 53, servers); n != 0 || err != nil {
		t.Errorf("a second time %d forgotten, error %v", n, err)
	}
}

// TestDeleteConntrackOncePerChange: a Setup has flows forgotten when its rules lead elsewhere than
// before, not at every look at them.
func TestDeleteConntrackOncePerChange(t *testing.T) {
	f := newFakeNode()
	s := newSetup(t, dualStack(), f)
	apply(t, s)
	for _, to := range [][]netip.AddrPort{servers, servers[:1], nil, servers[:1]} {
		check.NoError(t, s.Divert(t.Context(), to))
	}
	s.recheck(t.Context())
	want := [][]netip.AddrPort{servers, servers[:1]}
	if d := cmp.Diff(want, f.conntrackTargets, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("flows were forgotten but to (-want +got):\n%s", d)
	}
}

// FuzzParseConntrack: whatever comes is read or refused.
func FuzzParseConntrack(f *testing.F) {
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x00\x00\x00\x00", 3)))
	f.Add([]byte("\x05\x00\x01\x00\x00")) // no padding behind it
	f.Fuzz(func(t *testing.T, text []byte) {
		if flow, ok := parseConntrack(text); ok && !flow.originalDst.IsValid() {
			t.Errorf("%x is read as %v", text, flow)
		}
	})
}
