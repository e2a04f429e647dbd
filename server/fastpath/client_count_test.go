// These tests use clients, which are not exported.

package fastpath

import (
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// clientCounts is a ClientReporter that adds up.
type clientCounts map[netip.Addr][2]uint64

func (c clientCounts) ReportClient(addr netip.Addr, noError, nxDomain uint64) {
	n := c[addr]
	c[addr] = [2]uint64{n[0] + noError, n[1] + nxDomain}
}

// newCountTest is an admissionTest with another name, which does not exist.
func newCountTest(t *testing.T) (s *admissionTest, missing []byte, counted clientCounts) {
	s, counted = newAdmissionTest(t), make(clientCounts)
	s.clients.reporter = counted
	missing = ask(t, "nosuch.default.svc.cluster.local.", dns.TypeA, nil)
	s.put(answerTo(t, missing, answers["a name error"].reply))
	return s, missing, counted
}

// askTimes sends a query until n have been answered. Those in between that the program passes on to the
// agent, to renew the admission, are not counted.
func (s *admissionTest) askTimes(client netip.AddrPort, query []byte, n int) {
	s.t.Helper()
	for range 1000 {
		if n == 0 {
			return
		}
		s.renew()
		if s.runOn(portB, s.objects.NodensAnswer, frame(client, listenerFor(client), query)) == redirected {
			n--
		} else {
			s.replied(client, portB)
		}
	}
	s.t.Fatalf("%d queries of %s are still not answered", n, client)
}

// TestClientCounts checks that answers are counted by client and rcode, on whatever processor, and that
// each is reported once.
func TestClientCounts(t *testing.T) {
	s, missing, counted := newCountTest(t)
	want := make(clientCounts)
	for round := range 3 {
		for cpu := range runtime.NumCPU() {
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil { // of this thread, which ends with the test
				t.Fatal(err)
			}
			for i, client := range []netip.AddrPort{client4, client6} {
				clear(counted)
				clear(want)
				found, absent := 3+round+i, 2+cpu+i
				s.askTimes(client, s.query, found)
				s.askTimes(client, missing, absent)
				want[client.Addr()] = [2]uint64{uint64(found), uint64(absent)}
				s.Sweep()
				if !maps.Equal(counted, want) {
					t.Fatalf("reported: %v, want %v", counted, want)
				}
			}
		}
	}
	clear(counted)
	s.Sweep()
	if len(counted) > 0 {
		t.Errorf("reported again: %v", counted)
	}
}

// TestReportClient checks that one client is reported at once, and the others are not.
func TestReportClient(t *testing.T) {
	s, _, counted := newCountTest(t)
	s.askTimes(client4, s.query, 5)
	s.askTimes(client6, s.query, 5)
	s.ReportClient(client4.Addr())
	want := clientCounts{client4.Addr(): {5}}
	if !maps.Equal(counted, want) {
		t.Errorf("reported: %v, want %v", counted, want)
	}
	s.ReportClient(netip.MustParseAddr("192.0.2.1")) // asks nothing
	if !maps.Equal(counted, want) {
		t.Errorf("reported: %v, want %v", counted, want)
	}
}

// TestClientCountsReused checks that the answers of a client that no longer asks are reported before its
// number is free, and that the next client with the number starts at zero.
func TestClientCountsReused(t *testing.T) {
	s, _, counted := newCountTest(t)
	s.askTimes(client4, s.query, 5)
	number := s.client(client4.Addr()).Number
	s.forget()
	if want := (clientCounts{client4.Addr(): {5}}); !maps.Equal(counted, want) {
		t.Errorf("reported: %v, want %v", counted, want)
	}
	clear(counted)
	for range len(s.clients.states) {
		s.isAnswered(client6, portB)
		if s.client(client6.Addr()).Number == number {
			break
		}
		s.forget()
	}
	s.Sweep()
	if len(counted) > 0 {
		t.Errorf("reported: %v, want nothing: no answer was given", counted)
	}
}

// TestClientsOf checks that clients are found by the interface on which they have asked last.
func TestClientsOf(t *testing.T) {
	s := newAdmissionTest(t)
	s.isAnswered(client4, portA)
	s.isAnswered(client6, portB)
	for port, want := range map[int]netip.AddrPort{portA: client4, portB: client6} {
		if got := s.ClientsOf(port); !slices.Equal(got, []netip.Addr{want.Addr()}) {
			t.Errorf("on interface %d: %v, want %v", port, got, want.Addr())
		}
	}
	if got := s.ClientsOf(portA + 1); len(got) > 0 {
		t.Errorf("on an interface without clients: %v", got)
	}
}
