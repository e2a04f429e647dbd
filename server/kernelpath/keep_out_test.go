// Inside the package: it uses the fixture of the tests of admission.

package kernelpath

import (
	"net/netip"
	"testing"
	"time"
)

// TestKeepOut: selected clients are not answered until the time is over, and others are.
func TestKeepOut(t *testing.T) {
	s := newAdmissionTest(t)
	s.renew()
	admit := func() {
		for _, client := range []netip.AddrPort{client4, client6} {
			s.isAnswered(client, portB)
			s.replied(client, portB)
		}
	}
	check := func(when string, want4, want6 bool) {
		t.Helper()
		for client, want := range map[netip.AddrPort]bool{client4: want4, client6: want6} {
			if got := s.isAnswered(client, portB); got != want {
				t.Errorf("%s: %s is answered: %v; %v", when, client.Addr(), got, s.Counters().Results)
			}
		}
	}
	only4 := func(addr netip.Addr) bool { return addr == client4.Addr() }
	admit()
	check("at first", true, true)
	s.KeepOut(only4, time.Minute)
	check("kept out", false, true)
	admit()
	check("after an answer of the agent", false, true)
	s.KeepOut(only4, time.Second)
	s.advance(30 * time.Second)
	admit()
	check("a shorter time does not shorten it", false, true)
	s.advance(31 * time.Second)
	admit()
	check("the time is over", true, true)
}
