// These tests use clients, which are not exported.

package kernelpath

import (
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

// clientCounts are answers by client.
type clientCounts map[netip.Addr]ClientAnswers

// reports is a ClientReporter that keeps what is reported.
type reports struct {
	counted clientCounts
	sampled []sampled
	limited map[netip.Addr]uint64
}

// ReportClient implements ClientReporter.
func (r *reports) ReportClient(addr netip.Addr, n ClientAnswers) {
	sum := r.counted[addr]
	r.counted[addr] = ClientAnswers{NoError: sum.NoError + n.NoError, NXDomain: sum.NXDomain + n.NXDomain, Waste: sum.Waste + n.Waste}
}

// ReportSample implements ClientReporter.
func (r *reports) ReportSample(addr netip.Addr, name []byte, waste bool) {
	r.sampled = append(r.sampled, sampled{addr, wire.Name(name).String(), waste})
}

// ReportLimited implements ClientReporter.
func (r *reports) ReportLimited(addr netip.Addr, n uint64) {
	if r.limited == nil {
		r.limited = make(map[netip.Addr]uint64)
	}
	r.limited[addr] += n
}

// sampled is a sample that was reported.
type sampled struct {
	addr  netip.Addr
	name  string
	waste bool
}

// countTest is an admissionTest with two more names, which do not exist. One of them is search waste.
type countTest struct {
	*admissionTest
	missing, wasted []byte // queries for these names
	reported        *reports
}

func newCountTest(t *testing.T) *countTest {
	s := &countTest{admissionTest: newAdmissionTest(t), reported: &reports{counted: make(clientCounts)}}
	s.clients.reporter = s.reported
	if err := s.openSamples(); err != nil {
		t.Fatal(err)
	}
	s.missing = ask(t, "nosuch.default.svc.cluster.local.", dns.TypeA, nil)
	s.wasted = ask(t, "www.example.com.svc.cluster.local.", dns.TypeA, nil)
	s.putMissing(s.missing, false)
	s.putMissing(s.wasted, true)
	return s
}

// putMissing puts the answer that the name of a query does not exist.
func (s *countTest) putMissing(query []byte, waste bool) {
	s.t.Helper()
	a := answerTo(s.t, query, answers["a name error"].reply)
	a.Waste = waste
	s.put(a)
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
	s := newCountTest(t)
	want := make(clientCounts)
	for round := range 3 {
		for cpu := range runtime.NumCPU() {
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil { // of this thread, which ends with the test
				t.Fatal(err)
			}
			for i, client := range []netip.AddrPort{client4, client6} {
				clear(s.reported.counted)
				clear(want)
				found, absent, wasted := 3+round+i, 2+cpu+i, 1+i
				s.askTimes(client, s.query, found)
				s.askTimes(client, s.missing, absent)
				s.askTimes(client, s.wasted, wasted)
				want[client.Addr()] = ClientAnswers{NoError: uint64(found), NXDomain: uint64(absent + wasted), Waste: uint64(wasted)}
				s.Sweep()
				if !maps.Equal(s.reported.counted, want) {
					t.Fatalf("reported: %v, want %v", s.reported.counted, want)
				}
			}
		}
	}
	clear(s.reported.counted)
	s.Sweep()
	if len(s.reported.counted) > 0 {
		t.Errorf("reported again: %v", s.reported.counted)
	}
}

// TestClientCountsWrap checks that answers are counted right when a counter passes 2^32.
func TestClientCountsWrap(t *testing.T) {
	s := newCountTest(t)
	s.isAnswered(client4, portB)
	n := s.client(client4.Addr()).Number
	for at := int(n); at < len(s.clients.counts); at += len(s.clients.states) {
		s.clients.counts[at] = programClientCount{NoError: 1<<32 - 2, NxDomain: 1<<32 - 1, Waste: 1<<32 - 3}
	}
	s.Sweep()
	clear(s.reported.counted)
	s.askTimes(client4, s.query, 5)
	s.askTimes(client4, s.missing, 3)
	s.askTimes(client4, s.wasted, 4)
	s.Sweep()
	if want := (clientCounts{client4.Addr(): {NoError: 5, NXDomain: 7, Waste: 4}}); !maps.Equal(s.reported.counted, want) {
		t.Errorf("reported: %v, want %v", s.reported.counted, want)
	}
}

// TestWasteChanges checks that a copy is counted as the agent's last answer for the same name was, though
// nothing else has changed.
func TestWasteChanges(t *testing.T) {
	s := newCountTest(t)
	for i, waste := range []bool{false, true, false} {
		s.putMissing(s.missing, waste)
		clear(s.reported.counted)
		s.askTimes(client4, s.missing, 2)
		s.Sweep()
		want := ClientAnswers{NXDomain: 2}
		if waste {
			want.Waste = 2
		}
		if got := s.reported.counted[client4.Addr()]; got != want {
			t.Errorf("answer %d: reported: %v, want %v", i, got, want)
		}
	}
}

// TestReportClient checks that one client is reported at once, and the others are not.
func TestReportClient(t *testing.T) {
	s := newCountTest(t)
	s.askTimes(client4, s.query, 5)
	s.askTimes(client6, s.query, 5)
	s.ReportClient(client4.Addr())
	want := clientCounts{client4.Addr(): {NoError: 5}}
	if !maps.Equal(s.reported.counted, want) {
		t.Errorf("reported: %v, want %v", s.reported.counted, want)
	}
	s.ReportClient(netip.MustParseAddr("192.0.2.1")) // asks nothing
	if !maps.Equal(s.reported.counted, want) {
		t.Errorf("reported: %v, want %v", s.reported.counted, want)
	}
}

// TestClientCountsReused checks that the answers of a client that no longer asks are reported before its
// number is free, and that the next client with the number starts at zero.
func TestClientCountsReused(t *testing.T) {
	s := newCountTest(t)
	s.askTimes(client4, s.query, 5)
	number := s.client(client4.Addr()).Number
	s.forget()
	if want := (clientCounts{client4.Addr(): {NoError: 5}}); !maps.Equal(s.reported.counted, want) {
		t.Errorf("reported: %v, want %v", s.reported.counted, want)
	}
	clear(s.reported.counted)
	for range len(s.clients.states) {
		s.isAnswered(client6, portB)
		if s.client(client6.Addr()).Number == number {
			break
		}
		s.forget()
	}
	s.Sweep()
	if len(s.reported.counted) > 0 {
		t.Errorf("reported: %v, want nothing: no answer was given", s.reported.counted)
	}
}

// TestClientsOf checks that clients are found by the interface on which they have asked last, also if that
// was long ago.
func TestClientsOf(t *testing.T) {
	s := newAdmissionTest(t)
	s.isAnswered(client4, portA)
	s.isAnswered(client6, portB)
	check := func(port int, want ...netip.Addr) {
		t.Helper()
		if got := s.ClientsOf(port); !slices.Equal(got, want) {
			t.Errorf("on interface %d: %v, want %v", port, got, want)
		}
	}
	check(portA, client4.Addr())
	check(portB, client6.Addr())
	check(portA + 1)
	for i := range 3 { // both lose their numbers, which then become free
		s.clients.sweep(kernelNow() + clientIdle + 2*unit + time.Duration(i)*sweepInterval)
		check(portA, client4.Addr())
		check(portB, client6.Addr())
	}
	s.isAnswered(client4, portB)
	check(portA)
	if got := s.ClientsOf(portB); len(got) != 2 {
		t.Errorf("after a client has moved: %v", got)
	}
	s.Detach(portB)
	check(portB, client4.Addr()) // it has a number
}

// TestIdleClients checks that a bounded number of clients is kept that no longer ask.
func TestIdleClients(t *testing.T) {
	var c clients
	for i := range 2 * maxIdle {
		c.noteIdle(programClient{Addr: [4]uint32{uint32(i)}}, i%3)
	}
	if len(c.idle) != maxIdle {
		t.Errorf("%d clients are kept", len(c.idle))
	}
	for i := range 3 {
		c.forgetIdle(i)
	}
	if len(c.idle) != 0 {
		t.Errorf("%d clients are left", len(c.idle))
	}
}
