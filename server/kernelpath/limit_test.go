// These tests use clients, objects and kernelNow, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// dropped is TC_SHOT.
const dropped = 2

// limitTest is an admissionTest whose limit the test sets. Both clients are admitted on portB.
type limitTest struct {
	*admissionTest
	reported *reports
}

func newLimitTest(t *testing.T) *limitTest {
	t.Helper()
	s := &limitTest{admissionTest: newAdmissionTest(t), reported: &reports{counted: make(clientCounts)}}
	s.clients.reporter = s.reported
	for _, client := range []netip.AddrPort{client4, client6} {
		s.admitLong(client, portB)
	}
	return s
}

// set sets the limit.
func (s *limitTest) set(l ClientLimit) {
	s.t.Helper()
	if err := s.limit.set(l); err != nil {
		s.t.Fatal(err)
	}
}

// verdicts are the numbers of packets by verdict.
type verdicts struct{ answered, passed, dropped int }

// send runs a program on n queries of a client on an interface.
func (s *limitTest) send(client netip.AddrPort, ifindex uint32, program *ebpf.Program, n int) verdicts {
	s.t.Helper()
	return s.sendFrame(frame(client, listenerFor(client), s.query), ifindex, program, n)
}

func (s *limitTest) sendFrame(in []byte, ifindex uint32, program *ebpf.Program, n int) (v verdicts) {
	s.t.Helper()
	for range n {
		s.renew()
		switch verdict := s.runOn(ifindex, program, in); verdict {
		case redirected:
			v.answered++
		case passedOn:
			v.passed++
		case dropped:
			v.dropped++
		default:
			s.t.Fatalf("verdict %d", int32(verdict))
		}
	}
	return v
}

// ask sends n queries of a client on portB to the program that answers.
func (s *limitTest) ask(client netip.AddrPort, n int) verdicts {
	s.t.Helper()
	return s.send(client, portB, s.objects.NodensAnswer, n)
}

// check compares verdicts.
func (s *limitTest) check(what string, got, want verdicts) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// slow is a rate for tests that hold the time.
const slow = 1

// holdTime makes the limit one query per hour, which is slower than any test, so that numbers of queries are
// exact. advanceLimit moves the time.
func (s *limitTest) holdTime(burst uint64) {
	s.state.Limit = uint64(time.Hour)
	s.state.Burst = burst * s.state.Limit
}

// advanceLimit makes the buckets of all clients with numbers older by n queries.
func (s *limitTest) advanceLimit(n uint64) {
	for i := range s.clients.limited.buckets {
		b := &s.clients.limited.buckets[i]
		b.Due -= min(b.Due, n*s.state.Limit)
		b.Excess -= min(b.Excess, n*s.state.Limit)
	}
}

// limited returns the reported numbers of dropped queries since the last call.
func (s *limitTest) limited() map[netip.Addr]uint64 {
	s.Sweep()
	limited := s.reported.limited
	s.reported.limited = nil
	return limited
}

// checkLimited compares what is reported with what is expected.
func (s *limitTest) checkLimited(want map[netip.Addr]uint64) {
	s.t.Helper()
	if got := s.limited(); !maps.Equal(got, want) {
		s.t.Errorf("reported: %v, want %v", got, want)
	}
}

// TestLimitDrop checks that a flood is dropped and counted exactly, while another client is answered.
func TestLimitDrop(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 10, Drop: true})
	s.holdTime(10)
	s.check("up to the burst", s.ask(client4, 10), verdicts{answered: 10})
	s.check("above it", s.ask(client4, 500), verdicts{dropped: 500})
	s.check("another client", s.ask(client6, 10), verdicts{answered: 10})
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 500})
	s.checkLimited(nil)
	s.advanceLimit(3)
	s.check("three intervals later", s.ask(client4, 5), verdicts{answered: 3, dropped: 2})
	s.advanceLimit(1000)
	s.check("long after that", s.ask(client4, 12), verdicts{answered: 10, dropped: 2})
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 4})
	if n := s.Counters().Results; n["client_limit"] != 504 || n["client_limit_passed"] != 0 {
		t.Errorf("results: %v", n)
	}
}

// TestLimitPass checks that without Drop as many queries as the limit allows are passed on in addition.
func TestLimitPass(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 10})
	s.holdTime(10)
	s.check("at once", s.ask(client4, 100), verdicts{answered: 10, passed: 10, dropped: 80})
	s.check("another client", s.ask(client6, 10), verdicts{answered: 10})
	s.advanceLimit(3)
	s.check("three intervals later", s.ask(client4, 10), verdicts{answered: 3, passed: 3, dropped: 4})
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 84})
	if n := s.Counters().Results; n["client_limit"] != 84 || n["client_limit_passed"] != 13 {
		t.Errorf("results: %v", n)
	}
}

// TestLimitRate checks that a client gets the rate of the limit over time, and that a query is dropped only if
// the client is ahead of it by the burst.
func TestLimitRate(t *testing.T) {
	const rate, burst, n = 10_000, 50, 5_000
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: rate, Burst: burst, Drop: true})
	bucket := &s.clients.limited.buckets[s.client(client4.Addr()).Number]
	began, answered := kernelNow(), 0
	for range n {
		at := kernelNow()
		v := s.ask(client4, 1)
		answered += v.answered
		if due := time.Duration(bucket.Due); v.dropped > 0 && due <= at+(burst-1)*time.Second/rate {
			t.Fatalf("dropped when the client was ahead by %v", due-at)
		}
	}
	took := kernelNow() - began
	if most := burst + 1 + int(took*rate/time.Second); answered > most || answered < burst {
		t.Errorf("in %v: %d answered, want at most %d", took, answered, most)
	}
}

// TestLimitCounts checks which packets count towards the limit.
func TestLimitCounts(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 4, Drop: true})
	plain4, plain6 := frame(client4, listener4, s.query), frame(client6, listener6, s.query)
	with := func(in []byte, at int, to ...byte) []byte {
		b := slices.Clone(in)
		copy(b[at:], to)
		return b
	}
	noQuery := frame(client4, listener4, []byte("no query"))
	for _, c := range []struct {
		name    string
		in      []byte
		program *ebpf.Program
		want    verdicts // of six packets
	}{
		{"an answered query", plain4, s.objects.NodensAnswer, verdicts{answered: 4, dropped: 2}},
		{"over IPv6", plain6, s.objects.NodensAnswer, verdicts{answered: 4, dropped: 2}},
		{"a query for the agent", frame(client4, listener4, s.query[:len(s.query)-1]), s.objects.NodensAnswer, verdicts{passed: 4, dropped: 2}},
		{"no query", noQuery, s.objects.NodensAnswer, verdicts{passed: 4, dropped: 2}},
		{"a padded frame", append(slices.Clone(plain4), 0), s.objects.NodensAnswer, verdicts{passed: 4, dropped: 2}},
		{"a watched interface", plain4, s.objects.NodensWatch, verdicts{passed: 4, dropped: 2}},
		{"in front of others", plain4, s.objects.NodensAhead, verdicts{passed: 6}},
		{"another port", frame(client4, netip.AddrPortFrom(listener4.Addr(), 54), s.query), s.objects.NodensAnswer, verdicts{passed: 6}},
		{"another address", frame(client4, netip.MustParseAddrPort("10.244.9.9:53"), s.query), s.objects.NodensAnswer, verdicts{passed: 6}},
		{"IPv4 options", with(plain4, 14, 0x46), s.objects.NodensAnswer, verdicts{passed: 6}},
		{"a fragment", with(plain4, 20, 0x20), s.objects.NodensAnswer, verdicts{passed: 6}},
		{"TCP", with(plain4, 23, 6), s.objects.NodensAnswer, verdicts{passed: 6}},
		{"an IPv6 extension header", with(plain6, 20, 43), s.objects.NodensAnswer, verdicts{passed: 6}},
	} {
		s.holdTime(4)
		s.advanceLimit(1000)
		s.check(c.name, s.sendFrame(c.in, portB, c.program, 6), c.want)
	}
}

// TestLimitOff checks that nothing is limited and no bucket is used without a limit.
func TestLimitOff(t *testing.T) {
	s := newLimitTest(t)
	s.check("without a limit", s.ask(client4, 1000), verdicts{answered: 1000})
	for i, b := range s.clients.limited.buckets {
		if b != (programBucket{}) {
			t.Fatalf("bucket %d: %+v", i, b)
		}
	}
}

// TestLimitChange checks that a new limit applies at once, and that a client need not wait for longer than
// the new limit demands.
func TestLimitChange(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 10_000, Drop: true})
	s.check("a high burst", s.ask(client4, 500), verdicts{answered: 500})
	s.set(ClientLimit{Rate: 1000, Burst: 100, Drop: true})
	if v := s.ask(client4, 1); v.dropped != 1 {
		t.Errorf("after the burst is lower: %+v", v)
	}
	b := &s.clients.limited.buckets[s.client(client4.Addr()).Number]
	if ahead := time.Duration(b.Due) - kernelNow(); ahead > time.Second/10 {
		t.Errorf("the client would wait for %v", ahead)
	}
	b.Due = uint64(kernelNow() + time.Hour)
	s.set(ClientLimit{Rate: slow, Burst: 5})
	s.check("refused instead of dropped", s.ask(client4, 20), verdicts{passed: 5, dropped: 15})
	s.set(ClientLimit{})
	s.check("without a limit", s.ask(client4, 1000), verdicts{answered: 1000})
	s.set(ClientLimit{Rate: slow, Drop: true})
	s.holdTime(1)
	b.Due = 0
	s.check("without a burst", s.ask(client4, 3), verdicts{answered: 1, dropped: 2})
}

// TestLimitExempt checks that exempt addresses are never limited, and no others.
func TestLimitExempt(t *testing.T) {
	s := newLimitTest(t)
	free, limited := verdicts{answered: 5}, verdicts{answered: 1, dropped: 4}
	for _, c := range []struct {
		prefixes     string
		want4, want6 verdicts
	}{
		{"", limited, limited},
		{"10.244.1.7/32", free, limited},
		{"10.244.1.6/32 10.244.1.8/29", limited, limited},
		{"10.244.0.0/16 fd00:1::/64", free, free},
		{"0.0.0.0/0", free, limited},
		{"::/0", limited, free},
		{"::/0 0.0.0.0/0", free, free},
		{"0.0.0.0/0 ::/0", free, free},
		{"::/0 10.244.1.0/24", free, free},
		{"fd00:1::7/128", limited, free},
		{"10.244.1.7/8", free, limited}, // not masked
	} {
		l := ClientLimit{Rate: slow, Burst: 1, Drop: true, Exempt: prefixes(t, c.prefixes)}
		s.set(l)
		s.holdTime(1)
		s.advanceLimit(1000)
		s.check(c.prefixes+", IPv4", s.ask(client4, 5), c.want4)
		s.check(c.prefixes+", IPv6", s.ask(client6, 5), c.want6)
		for client, want := range map[netip.AddrPort]verdicts{client4: c.want4, client6: c.want6} {
			s.renew()
			info, _ := s.Client(client.Addr(), listenerFor(client))
			if is := info.Result == "client_limit"; is != (want == limited) {
				t.Errorf("%s: %s is reported as %+v", c.prefixes, client, info)
			}
		}
	}
	if n := len(s.limit.exempt); n != 1 {
		t.Errorf("%d prefixes are left", n)
	}
}

// prefixes returns the prefixes in text, which are separated by spaces.
func prefixes(t *testing.T, text string) (list []netip.Prefix) {
	t.Helper()
	for _, one := range strings.Fields(text) {
		p, err := netip.ParsePrefix(one)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// TestLimitExemptBound checks that as many prefixes as documented fit, and that one more is an error that
// leaves the limit as it was.
func TestLimitExemptBound(t *testing.T) {
	s := newLimitTest(t)
	list := prefixes(t, "::/0")
	for addr := netip.MustParseAddr("10.0.0.0"); len(list) < MaxExempt; addr = addr.Next() {
		list = append(list, netip.PrefixFrom(addr, 32))
	}
	s.set(ClientLimit{Rate: slow, Burst: 3, Drop: true, Exempt: list})
	err := s.limit.set(ClientLimit{Rate: 77, Exempt: append(list, netip.PrefixFrom(client4.Addr(), 32))})
	if !errors.Is(err, ErrTooManyExempt) {
		t.Errorf("error: %v", err)
	}
	s.holdTime(3)
	s.check("after the error", s.ask(client4, 5), verdicts{answered: 3, dropped: 2})
}

// TestLimitInterfaces checks that queries with a client's address on another interface use up none of its
// limit, and are limited, too.
func TestLimitInterfaces(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 5, Drop: true})
	s.holdTime(5)
	s.check("the client", s.ask(client4, 2), verdicts{answered: 2})
	s.check("another on its interface", s.send(client4, portA, s.objects.NodensAnswer, 100), verdicts{passed: 5, dropped: 95})
	s.check("the client, which is not admitted now", s.ask(client4, 5), verdicts{passed: 3, dropped: 2})
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 97})
	s.check("another again", s.send(client4, portA, s.objects.NodensAnswer, 3), verdicts{dropped: 3})
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 3})
	s.checkLimited(nil)
}

// TestLimitFull checks that clients are limited for which there is no number, and that their number is
// bounded.
func TestLimitFull(t *testing.T) {
	s := newLimitTest(t)
	query := frame(netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), 1), listener4, s.query)
	next := func() {
		addr := netip.AddrFrom4([4]byte(query[26:30])).Next().As4()
		copy(query[26:], addr[:])
	}
	for range s.clients.states {
		s.runOn(portA, s.objects.NodensWatch, query)
		next()
	}
	s.set(ClientLimit{Rate: slow, Burst: 2, Drop: true})
	s.holdTime(2)
	want := make(map[netip.Addr]uint64)
	for i := range 50 {
		s.check("without a number", s.sendFrame(query, portA, s.objects.NodensWatch, 3+i), verdicts{passed: 2, dropped: 1 + i})
		want[netip.AddrFrom4([4]byte(query[26:30]))] = uint64(1 + i)
		next()
	}
	s.checkLimited(want)
	for range 3 * s.objects.Senders.MaxEntries() {
		s.runOn(portA, s.objects.NodensWatch, query)
		next()
	}
	s.check("after many others", s.sendFrame(query, portA, s.objects.NodensWatch, 3), verdicts{passed: 2, dropped: 1})
	s.check("one with a number", s.ask(client4, 3), verdicts{answered: 2, dropped: 1})
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 1, netip.AddrFrom4([4]byte(query[26:30])): 1})
	if n := len(s.clients.limited.reportedSenders); n > int(s.objects.Senders.MaxEntries()) {
		t.Errorf("%d clients are kept", n)
	}
}

// TestLimitSegments checks that each query counts in a packet that is to be segmented.
func TestLimitSegments(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 10, Drop: true})
	s.holdTime(10)
	packet := func(queries int) uint32 {
		var context [192]byte
		binary.NativeEndian.PutUint32(context[40:], portB)
		binary.NativeEndian.PutUint32(context[176:], uint32(len(s.query))) // gso_size
		verdict, err := s.objects.NodensAnswer.Run(&ebpf.RunOptions{
			Data: frame(client4, listener4, slices.Concat(slices.Repeat([][]byte{s.query}, queries)...)), DataOut: make([]byte, 4096), Context: context[:],
		})
		if err != nil {
			t.Fatal(err)
		}
		return verdict
	}
	if got := packet(8); got != passedOn {
		t.Errorf("eight of ten: verdict %d", int32(got))
	}
	if got := packet(3); got != dropped {
		t.Errorf("three more: verdict %d", int32(got))
	}
	if got := packet(2); got != passedOn {
		t.Errorf("two more: verdict %d", int32(got))
	}
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 3})
}

// TestLimitRelease checks that a client that no longer asks keeps its number until it may send its whole
// burst, so that it does not get a second one, and that dropped queries are reported once.
func TestLimitRelease(t *testing.T) {
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: 5, Drop: true})
	s.holdTime(5)
	s.ask(client4, 8)
	s.forget()
	if s.client(client4.Addr()) == nil {
		t.Fatal("the client has lost its number")
	}
	s.check("after a minute", s.ask(client4, 1), verdicts{dropped: 1})
	s.advanceLimit(5)
	s.forget()
	if s.client(client4.Addr()) != nil {
		t.Fatal("the client has its number still")
	}
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): 4})
	for i, b := range s.clients.limited.buckets {
		if b != (programBucket{}) && s.clients.states[i].Place == 0 {
			t.Errorf("bucket %d of nobody: %+v", i, b)
		}
	}
}

// TestLimitAtOnce checks that queries on several CPUs at once neither exceed the limit nor are lost from the
// counts.
func TestLimitAtOnce(t *testing.T) {
	const senders, each, burst = 4, 2000, 3000
	s := newLimitTest(t)
	s.set(ClientLimit{Rate: slow, Burst: burst, Drop: true})
	s.holdTime(burst)
	var all sync.WaitGroup
	var sums [senders]int
	in := frame(client4, listener4, []byte("no query"))
	for i := range senders {
		all.Go(func() {
			for range each {
				verdict, err := s.objects.NodensAnswer.Run(&ebpf.RunOptions{Data: in, DataOut: make([]byte, 2048)})
				if err != nil {
					t.Error(err)
					return
				}
				if verdict == passedOn {
					sums[i]++
				}
			}
		})
	}
	all.Wait()
	passed := 0
	for _, n := range sums {
		passed += n
	}
	if passed < burst || passed > burst+senders {
		t.Errorf("%d were passed on, want %d", passed, burst)
	}
	s.checkLimited(map[netip.Addr]uint64{client4.Addr(): uint64(senders*each - passed)})
}
