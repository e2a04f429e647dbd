// These tests use clients, objects and clientIdle, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

// The interfaces of two pods.
const (
	portA = 10
	portB = 20
)

// admissionTest is a testProgram with two interfaces, clients that are not known yet, and
// one name in the table.
type admissionTest struct {
	*testProgram
	query []byte
}

func newAdmissionTest(t *testing.T) *admissionTest {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("a network of its own: ", err)
	}
	runCommand(t, "ip", "link", "add", "poda", "index", "10", "type", "veth", "peer", "name", "ina")
	runCommand(t, "ip", "link", "add", "podb", "index", "20", "type", "veth", "peer", "name", "inb")
	s := &admissionTest{testProgram: &testProgram{Program: openProgram(t), t: t}}
	if err := s.SetListeners(map[netip.AddrPort]uint32{listener4: 7, listener6: 7, otherDoor4: 8}); err != nil {
		t.Fatal(err)
	}
	s.query = ask(t, "web.default.svc.cluster.local.", dns.TypeA, nil)
	for _, door := range []uint32{7, 8} {
		a := answerTo(t, s.query, func(r *wire.Reply) { r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7}) })
		a.Listener = door
		s.put(a)
	}
	s.renew()
	return s
}

// otherDoor4 is an address at which something else is served.
var otherDoor4 = netip.MustParseAddrPort("10.96.0.10:53")

// renew sends a heartbeat and confirms that all interfaces are watched.
func (s *admissionTest) renew() {
	s.Heartbeat()
	s.ConfirmWatched()
}

// runOn runs a program on a frame that arrives or leaves on an interface.
func (s *admissionTest) runOn(ifindex uint32, program *ebpf.Program, in []byte) uint32 {
	s.t.Helper()
	var context [192]byte // struct __sk_buff
	binary.NativeEndian.PutUint32(context[40:], ifindex)
	verdict, err := program.Run(&ebpf.RunOptions{Data: in, DataOut: make([]byte, 2048), Context: context[:]})
	if err != nil {
		s.t.Fatal(err)
	}
	return verdict
}

func listenerFor(client netip.AddrPort) netip.AddrPort {
	if client.Addr().Is4() {
		return listener4
	}
	return listener6
}

// isAnswered sends a query on an interface and reports whether the kernel answers it. Unless the client has asked
// on another interface before, the result must be the one that [Program.Client] reports, for the time at
// which the run begins or ends.
func (s *admissionTest) isAnswered(client netip.AddrPort, ifindex uint32) bool {
	s.t.Helper()
	const listener = 7
	var was programClientState
	if state, ok := s.clients.state(client.Addr()); ok {
		was = *state
	}
	before, began := s.Counters().Results, uint64(kernelNow())
	answered := s.runOn(ifindex, s.objects.NodensAnswer, frame(client, listenerFor(client), s.query)) == redirected
	ended := uint64(kernelNow())
	if stampNumber(was.Place) == int(ifindex) {
		reported := []string{results[was.result(listener, began)], results[was.result(listener, ended)]}
		for result, n := range s.Counters().Results {
			if n != before[result] && !slices.Contains(append(reported, "heartbeat_expired"), result) {
				s.t.Errorf("%s on interface %d: %s, reported as %q", client, ifindex, result, reported)
			}
		}
	}
	return answered
}

// replied sends a reply of the agent to a client on an interface.
func (s *admissionTest) replied(client netip.AddrPort, ifindex uint32) {
	s.t.Helper()
	s.runOn(ifindex, s.objects.NodensAdmit, frame(listenerFor(client), client, s.query))
}

// admitLong admits a client on an interface for longer than a test takes.
func (s *admissionTest) admitLong(client netip.AddrPort, ifindex uint32) {
	s.t.Helper()
	s.isAnswered(client, ifindex)
	s.replied(client, ifindex)
	c := s.client(client.Addr())
	for i := range c.Passes {
		if c.Passes[i].Until != 0 {
			until := uint64(kernelNow() + time.Hour)
			c.Passes[i].Until, c.Passes[i].Renew = newStamp(until, 7), until
		}
	}
}

// advance makes everything that the program knows about clients older by d. The machine may
// have been up for less.
func (s *admissionTest) advance(d time.Duration) {
	units := uint64(d >> programBoundSTAMP_TIME)
	earlier := func(ns *uint64) { *ns -= min(*ns, units<<programBoundSTAMP_TIME) }
	for i := range s.clients.states {
		c := &s.clients.states[i]
		if c.Place == 0 {
			continue
		}
		c.Place -= units << programBoundSTAMP_BITS // may wrap around below 0
		earlier(&c.Barred)
		for i := range c.Passes {
			pass := &c.Passes[i]
			pass.Until -= min(units, pass.Until>>programBoundSTAMP_BITS) << programBoundSTAMP_BITS
			earlier(&pass.Renew)
		}
	}
	earlier(&s.state.Unnoted)
}

// unit is the accuracy of the program's stamps.
const unit = time.Duration(1) << programBoundSTAMP_TIME

// TestAdmission checks that a client is answered if the agent has answered it on the
// interface on which it asks and no other interface uses its address.
func TestAdmission(t *testing.T) {
	s := newAdmissionTest(t)
	steps := func(steps ...func(client netip.AddrPort)) []func(netip.AddrPort) { return steps }
	asksOver := func(port uint32) func(netip.AddrPort) { return func(c netip.AddrPort) { s.isAnswered(c, port) } }
	repliedOver := func(port uint32) func(netip.AddrPort) { return func(c netip.AddrPort) { s.replied(c, port) } }
	later := func(d time.Duration) func(netip.AddrPort) { return func(netip.AddrPort) { s.advance(d) } }
	unwatched := func(netip.AddrPort) { s.state.Watched = 0 }
	odd := func(edit func([]byte) []byte) func(netip.AddrPort) {
		return func(c netip.AddrPort) {
			s.runOn(portA, s.objects.NodensAnswer, edit(frame(c, listenerFor(c), s.query)))
		}
	}
	set := func(at4, at6 int, to4, to6 byte) func(netip.AddrPort) {
		return odd(func(b []byte) []byte {
			if b[12] == 8 {
				b[at4] = to4
			} else {
				b[at6] = to6
			}
			return b
		})
	}
	for _, c := range []struct {
		name  string
		steps []func(client netip.AddrPort)
		want  bool
	}{
		{"has asked and was answered", steps(asksOver(portB), repliedOver(portB)), true},
		{"has asked and was not answered", steps(asksOver(portB)), false},
		{"was answered and has not asked", steps(repliedOver(portB)), false},
		{"was answered over another interface", steps(asksOver(portB), repliedOver(portA)), false},
		{"was answered two seconds ago", steps(asksOver(portB), repliedOver(portB), later(2*time.Second+unit)), false},
		{"a second one goes on to the agent", steps(asksOver(portB), repliedOver(portB), later(time.Second+unit)), false},
		{"and the next one does not", steps(asksOver(portB), repliedOver(portB), later(time.Second+unit), asksOver(portB)), true},
		{"has asked long before the answer", steps(asksOver(portB), later(5*time.Second+unit), repliedOver(portB)), false},
		{"has asked shortly before the answer", steps(asksOver(portB), later(5*time.Second-2*unit), repliedOver(portB)), true},
		{"nobody watches", steps(unwatched, asksOver(portB), repliedOver(portB)), false},
		{"another asks in its name", steps(asksOver(portA), repliedOver(portB)), false},
		{"another asks in its name, then it asks", steps(asksOver(portA), asksOver(portB), repliedOver(portB)), false},
		{"it asks, then another in its name", steps(asksOver(portB), asksOver(portA), repliedOver(portB)), false},
		{"another asks when it is admitted", steps(asksOver(portB), repliedOver(portB), asksOver(portA)), false},
		{"another has asked ten seconds ago", steps(asksOver(portA), later(10*time.Second-2*unit), asksOver(portB), repliedOver(portB)), false},
		{"another has asked longer ago", steps(asksOver(portA), later(10*time.Second+3*unit), asksOver(portB), repliedOver(portB)), true},
		{"is barred for ten seconds", steps(asksOver(portA), asksOver(portB), later(10*time.Second-2*unit), asksOver(portB), repliedOver(portB)), false},
		{"is barred no longer", steps(asksOver(portA), asksOver(portB), later(10*time.Second+2*unit), asksOver(portB), repliedOver(portB)), true},
		{"has moved for good", steps(asksOver(portA), repliedOver(portA), asksOver(portB), later(11*time.Second), asksOver(portB), repliedOver(portB)), true},
		{"another in a packet with options", steps(asksOver(portB), set(14, 20, 0x46, 0), repliedOver(portB)), false},
		{"another in fragments", steps(asksOver(portB), set(20, 20, 0x20, 44), repliedOver(portB)), false},
		{"another behind a routing header", steps(asksOver(portB), set(20, 20, 0x20, 43), repliedOver(portB)), false},
		{"another in a frame that is padded", steps(asksOver(portB), odd(func(b []byte) []byte { return append(b, 0) }), repliedOver(portB)), false},
		{"another with a name that is too long", steps(asksOver(portB), odd(func(b []byte) []byte { return b[:len(b)-5] }), repliedOver(portB)), false},
		{"another by TCP, which has no forged answers", steps(asksOver(portB), set(23, 20, 6, 6), repliedOver(portB)), true},
		{"another to nobody here", steps(asksOver(portB), set(30, 38, 198, 0xFE), repliedOver(portB)), true},
	} {
		for _, client := range []netip.AddrPort{client4, client6} {
			s.forget()
			s.renew()
			for _, step := range c.steps {
				step(client)
			}
			if got := s.isAnswered(client, portB); got != c.want {
				t.Errorf("%s: %s is answered: %v, want %v; %v", client.Addr(), c.name, got, c.want, s.Counters().Results)
			}
		}
	}
}

// forget removes all clients.
func (s *admissionTest) forget() {
	s.clients.lastSweep = 0
	s.clients.sweep(kernelNow() + clientIdle + 2*unit)
	s.clients.sweep(s.clients.lastSweep + sweepInterval)
	s.clients.lastSweep = 0
}

// TestWatchProgram checks that the program that does not answer also records who asks.
func TestWatchProgram(t *testing.T) {
	s := newAdmissionTest(t)
	for _, client := range []netip.AddrPort{client4, client6} {
		s.isAnswered(client, portB)
		s.replied(client, portB)
		if !s.isAnswered(client, portB) {
			t.Fatalf("%s is not answered", client)
		}
		if got := s.runOn(portA, s.objects.NodensWatch, frame(client, listenerFor(client), s.query)); got != passedOn {
			t.Errorf("verdict %d", int32(got))
		}
		if s.isAnswered(client, portB) {
			t.Errorf("%s is answered though another one has its address", client)
		}
	}
	if n := s.Counters().Results["client_moved"]; n != 2 {
		t.Errorf("%d of 2 queries are counted as moved", n)
	}
}

// TestAdmissionListeners checks that a client is admitted at each listener separately, and
// at the last four of them.
func TestAdmissionListeners(t *testing.T) {
	s := newAdmissionTest(t)
	at := func(door netip.AddrPort) bool {
		return s.runOn(portB, s.objects.NodensAnswer, frame(client4, door, s.query)) == redirected
	}
	s.isAnswered(client4, portB)
	s.replied(client4, portB)
	if !at(listener4) || at(otherDoor4) {
		t.Error("a client is to be answered at the door of the agent's reply alone")
	}
	s.runOn(portB, s.objects.NodensAdmit, frame(otherDoor4, client4, s.query))
	if !at(listener4) || !at(otherDoor4) {
		t.Error("a client is to be answered at both doors")
	}
	pass := s.client(client4.Addr()).Passes
	for i := range pass {
		if n := pass[i].Until & (1<<programBoundSTAMP_BITS - 1); i < 2 && n != uint64(7+i) || i > 1 && n != 0 {
			t.Errorf("pass %d is for door %d", i, n)
		}
	}
}

// TestAdmissionFull checks that new clients are not admitted while there is no room, and
// that known clients stay admitted. When there is room again, a client that was not recorded
// is admitted ten seconds later, because its address may have been forged meanwhile.
func TestAdmissionFull(t *testing.T) {
	s := newAdmissionTest(t)
	s.admitLong(client4, portB)
	flood := netip.MustParseAddr("198.18.0.1")
	for range len(s.clients.states) {
		s.runOn(portA, s.objects.NodensWatch, frame(netip.AddrPortFrom(flood, 1), listener4, s.query))
		flood = flood.Next()
	}
	late := netip.AddrPortFrom(netip.MustParseAddr("10.244.1.8"), 40001)
	admitted := func() bool {
		s.renew()
		s.isAnswered(late, portB)
		s.replied(late, portB)
		return s.isAnswered(late, portB)
	}
	if admitted() || s.client(late.Addr()) != nil {
		t.Fatal("a client is admitted for which there is no room")
	}
	s.renew() // the flood may have taken longer than a heartbeat lasts
	if !s.isAnswered(client4, portB) {
		t.Error("a client that is known is not answered")
	}
	s.forget()
	if admitted() || s.client(late.Addr()) == nil {
		t.Error("a client that was not noted before is admitted, or has no room")
	}
	s.advance(10*time.Second + 2*unit)
	if !admitted() {
		t.Error("a client is not admitted though there is room")
	}
}

// TestClientsSweep checks that clients that no longer ask lose their numbers, and that a
// number is not reused before the next sweep.
func TestClientsSweep(t *testing.T) {
	s := newAdmissionTest(t)
	free := func() (n int) {
		for i := range s.clients.states {
			if s.clients.states[i].Place == 0 {
				n++
			}
		}
		return n
	}
	all := free()
	s.isAnswered(client4, portB)
	asked := stampTime(s.client(client4.Addr()).Place)
	for _, c := range []struct {
		name  string
		at    time.Duration
		known bool
		free  int
	}{
		{"early", asked + clientIdle - 2*unit, true, all - 1},
		{"soon after that", asked + clientIdle + 2*unit, true, all - 1},
		{"idle", asked + clientIdle - 2*unit + sweepInterval, false, all - 1},
		{"soon after that", asked + clientIdle + sweepInterval, false, all - 1},
		{"free", asked + clientIdle - 2*unit + 2*sweepInterval, false, all},
	} {
		s.clients.sweep(c.at)
		if known, n := s.client(client4.Addr()) != nil, free(); known != c.known || n != c.free {
			t.Errorf("%s: known: %v, want %v; %d numbers are free, want %d", c.name, known, c.known, n, c.free)
		}
	}
	s.clients.lastSweep = 0
	used := make(map[*programClientState]bool)
	for range all { // each number is used in turn
		s.isAnswered(client6, portB)
		used[s.client(client6.Addr())] = true
		s.forget()
	}
	if len(used) != all || free() != all {
		t.Errorf("%d numbers were used, and %d are free, want %d", len(used), free(), all)
	}
}

// TestClientNumberReused checks that a number that now belongs to another client is not
// used for the first one.
func TestClientNumberReused(t *testing.T) {
	s := newAdmissionTest(t)
	s.isAnswered(client4, portB)
	s.replied(client4, portB)
	c := s.client(client4.Addr())
	c.Client.Addr[3]++
	before := *c
	if s.isAnswered(client4, portB) {
		t.Error("a client is answered by the pass of another")
	}
	s.replied(client4, portB)
	if *c != before {
		t.Errorf("the state of another changes from %+v to %+v", before, *c)
	}
}
