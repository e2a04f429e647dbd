// This test uses hostAddrs, which is not exported.

package app

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

// TestHostAddrs: loopback addresses are the machine's own, and so are those of its links,
// which are read again when they have grown old.
func TestHostAddrs(t *testing.T) {
	reads, broken := 0, false
	list := []net.Addr{&net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("fe80::1"), Mask: net.CIDRMask(64, 128)}}
	h := &hostAddrs{list: func() ([]net.Addr, error) {
		reads++
		if broken {
			return nil, errors.New("broken")
		}
		return list, nil
	}}
	check := func(want bool, addrs ...string) {
		t.Helper()
		for _, a := range addrs {
			if got := h.has(netip.MustParseAddr(a)); got != want {
				t.Errorf("%s: %v, want %v", a, got, want)
			}
		}
	}
	check(true, "127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "::ffff:192.0.2.1", "fe80::1", "fe80::1%eth0")
	check(false, "192.0.2.2", "10.0.0.1", "fe80::2", "::ffff:192.0.2.2")
	if reads != 1 {
		t.Errorf("the addresses were read %d times", reads)
	}
	list = list[1:]
	check(true, "192.0.2.1")
	age := func() { h.cached.Load().at -= 2 * hostAddrsAge }
	age()
	check(false, "192.0.2.1")
	broken = true
	age()
	check(true, "fe80::1")
	if (*hostAddrs)(nil).has(netip.MustParseAddr("192.0.2.1")) || !(*hostAddrs)(nil).has(netip.AddrFrom4([4]byte{127, 0, 0, 1})) {
		t.Error("no hostAddrs knows other addresses than those of loopback")
	}
}
