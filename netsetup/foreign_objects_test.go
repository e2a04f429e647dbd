// These tests use ipvsInterface, kindDummy and closeOwnerTable, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
)

func TestAddressesOfOthers(t *testing.T) {
	local := dualStack().Addresses[0]
	tests := []struct {
		name string
		addr Addr
		want string // in the error; empty: none
	}{
		{"same address elsewhere", Addr{Interface: "eth0", Prefix: netip.PrefixFrom(local, 32)}, "in use on eth0"},
		{"same address in a network elsewhere", Addr{Interface: "eth0", Prefix: netip.PrefixFrom(local, 16)}, "in use on eth0"},
		{"on lo", Addr{Interface: "lo", Prefix: netip.PrefixFrom(local, 32)}, ""},
		{"in a network on lo", Addr{Interface: "lo", Prefix: netip.PrefixFrom(local, 16)}, ""},
		{"another one elsewhere", Addr{Interface: "eth0", Prefix: netip.MustParsePrefix("169.254.20.11/32")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeNode()
			f.putInterface(Interface{Name: "eth0", Kind: "device", Up: true})
			check.NoError(t, f.AddAddr(tt.addr))
			before := f.dump()
			s := newSetup(t, dualStack(), f)
			err := s.EnsureInterface(t.Context())
			if tt.want != "" {
				wantError(t, err, InterfaceCheck, tt.want, "--localip", "--setupinterface=false")
				check.Equal(t, before, f.dump(), "Links changed something first")
				// A re-check puts the other address in place all the same.
				s.recheck(t.Context())
				if !strings.Contains(f.dump(), "addr fd00::a/128 on nodelocaldns") {
					t.Errorf("one address in use stops the others:\n%s", f.dump())
				}
			} else if err != nil {
				t.Fatal(err)
			}
			check.NoError(t, s.Teardown(0, nil))
			want := before
			if tt.addr.Interface == loopback && tt.addr.Prefix.IsSingleIP() {
				// The plan's own address goes, whoever put it there.
				want = "link eth0 kind device up true\n" + newFakeNode().dump()
			}
			check.Equal(t, want, f.dump(), "after Teardown")
		})
	}
}

// TestIPVS: an address that kube-proxy serves in IPVS mode is not taken over, even if it
// is ours already, and the error says what to change.
func TestIPVS(t *testing.T) {
	c := dualStack()
	c.Addresses = parseAddrs("10.96.0.10", "169.254.20.11")
	for _, tt := range []struct {
		name   string
		locals []netip.Addr
		ours   bool // the dummy link has it too
		want   []string
	}{
		{"a link-local one is left", c.Addresses, false, []string{
			"10.96.0.10/32", "in use on kube-ipvs0", "IPVS mode", "remove 10.96.0.10 from --localip",
			`clusterDNS: ["169.254.20.11"]`, "--cluster-dns=169.254.20.11",
		}},
		{"it is ours, too", c.Addresses, true, []string{"in use on kube-ipvs0", `clusterDNS: ["169.254.20.11"]`}},
		{"no other", c.Addresses[:1], false, []string{`clusterDNS: ["169.254.20.10"]`, "add 169.254.20.10 there"}},
	} {
		f := newFakeNode()
		f.putInterface(Interface{Name: ipvsInterface, Kind: kindDummy})
		if tt.ours {
			f.putInterface(Interface{Name: DefaultInterfaceName, Kind: kindDummy, Up: true})
			check.NoError(t, f.AddAddr(Addr{Interface: DefaultInterfaceName, Prefix: netip.MustParsePrefix("10.96.0.10/32")}))
		}
		check.NoError(t, f.AddAddr(Addr{Interface: ipvsInterface, Prefix: netip.MustParsePrefix("10.96.0.10/32")}))
		c.Addresses = tt.locals
		s := newSetup(t, c, f)
		before := f.dump()
		wantError(t, s.EnsureInterface(t.Context()), InterfaceCheck, tt.want...)
		check.Equal(t, before, f.dump(), "%s", tt.name)
	}
}

// TestForeignInterface: an interface of another kind under the agent's name stays, and the error says what to do about it.
func TestForeignInterface(t *testing.T) {
	f := newFakeNode()
	f.putInterface(Interface{Name: DefaultInterfaceName, Kind: "bridge"})
	before := f.dump()
	wantError(t, newSetup(t, dualStack(), f).EnsureInterface(t.Context()), InterfaceCheck, "nodelocaldns", `"bridge"`, "delete it", "a name that no interface has")
	check.Equal(t, before, f.dump(), "the node")
}

func TestAdoptsWhatAnEarlierRunLeft(t *testing.T) {
	f := newFakeNode()
	empty := f.dump()
	killed := newSetup(t, dualStack(), f)
	apply(t, killed)
	left := f.dump()
	killed.closeOwnerTable() // as the kernel does at its end
	s := newSetup(t, dualStack(), f)
	apply(t, s)
	check.Equal(t, left, f.dump(), "the second start")
	if got := s.Stats(); got.Repairs != 0 || totalErrors(s) != 0 {
		t.Errorf("a start is no repair: %+v", got)
	}
	check.NoError(t, s.Teardown(0, nil))
	check.Equal(t, empty, f.dump(), "Teardown")
}

// TestAddressAddedConcurrently has another agent add the link and the addresses between
// our look and our addition.
func TestAddressAddedConcurrently(t *testing.T) {
	f := newFakeNode()
	s := newSetup(t, dualStack(), f)
	raced := map[string]bool{}
	f.fail = func(call string) error {
		method, _, _ := strings.Cut(call, " ")
		if (method == "AddDummy" || method == "AddAddr") && !raced[method] {
			raced[method] = true
			return newSetup(t, dualStack(), f).EnsureInterface(context.Background())
		}
		return nil
	}
	apply(t, s)
	if len(raced) != 2 {
		t.Fatalf("raced %v", raced)
	}
	wantComplete(t, f, s, "after the race")
}

func TestLinkStaysWithAStrangersAddress(t *testing.T) {
	f := newFakeNode()
	var log strings.Builder
	c := dualStack()
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := newSetup(t, c, f)
	apply(t, s)
	for _, p := range []string{"192.0.2.9/32", "fe80::1/64"} {
		check.NoError(t, f.AddAddr(Addr{Interface: DefaultInterfaceName, Prefix: netip.MustParsePrefix(p)}))
	}
	check.NoError(t, s.Teardown(0, nil))
	const want = `addr 192.0.2.9/32 on nodelocaldns
addr fe80::1/64 on nodelocaldns
link lo kind device up true
link nodelocaldns kind dummy up true`
	check.Equal(t, want, f.dump(), "it differs")
	if !strings.Contains(log.String(), "keeping the interface") || !strings.Contains(log.String(), "192.0.2.9/32") {
		t.Errorf("the log does not say why the interface stays:\n%s", log.String())
	}
	check.NoError(t, f.DeleteAddr(Addr{Interface: DefaultInterfaceName, Prefix: netip.MustParsePrefix("192.0.2.9/32")}))
	check.NoError(t, s.Teardown(0, nil))
	check.Equal(t, newFakeNode().dump(), f.dump(), "the kernel's fe80 address keeps the link")
}

// TestRemoveOldAddresses: after a takeover, as from a ClusterIP back to link-local, what only the predecessor served
// goes from the dummy interface and lo, and other addresses stay.
func TestRemoveOldAddresses(t *testing.T) {
	f := newFakeNode()
	s := newSetup(t, dualStack(), f)
	f.putInterface(Interface{Name: "eth0", Kind: "device", Up: true})
	apply(t, s)
	want := f.dump()
	for _, add := range []struct {
		iface, prefix, label string
		stays                bool
	}{
		{DefaultInterfaceName, "10.96.0.10/32", "", false},
		{DefaultInterfaceName, "fd00:96::10/128", "", false},
		{DefaultInterfaceName, "192.0.2.1/24", "", true},
		{loopback, "10.96.0.11/32", loopbackLabel, false},
		{loopback, "10.96.0.12/32", "", true},
		{"eth0", "10.96.0.13/32", "", true},
	} {
		a := Addr{Interface: add.iface, Prefix: netip.MustParsePrefix(add.prefix), Label: add.label}
		check.NoError(t, f.AddAddr(a))
		if err := s.RemoveOldAddresses(t.Context()); err != nil {
			t.Error(err)
		}
		if has := strings.Contains(f.dump(), add.prefix); has != add.stays {
			t.Errorf("%v on %s: there %v, want %v", a.Prefix, a.Interface, has, add.stays)
		}
		_ = f.DeleteAddr(a)
	}
	check.Equal(t, want, f.dump(), "the plan's")
}
