// These tests use runAnswer and clients, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

// onOneProcessor keeps the test on one processor, because each remembers the listener that it has found last.
func onOneProcessor(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for i := range len(before) * 64 {
		if before.IsSet(i) {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.SchedSetaffinity(0, &before) })
}

// TestListenersForgotten checks that a listener that changes or ends is not found as it was before, although
// the processor has found it last.
func TestListenersForgotten(t *testing.T) {
	onOneProcessor(t)
	l := newTestProgram(t)
	query := ask(t, "web.default.svc.cluster.local.", dns.TypeA, nil)
	l.put(answerTo(t, query, func(r *wire.Reply) {
		r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7})
	}))
	for _, c := range []struct {
		name      string
		listeners map[netip.AddrPort]uint32
		result    string // what happens to a query; "": it is not one to a listener
	}{
		{"the answer's number", map[netip.AddrPort]uint32{listener4: 7, listener6: 7}, "answered"},
		{"another number", map[netip.AddrPort]uint32{listener4: 8, listener6: 7}, "miss"},
		{"the answer's number again", map[netip.AddrPort]uint32{listener4: 7, listener6: 7}, "answered"},
		{"no listener at the address", map[netip.AddrPort]uint32{listener6: 7}, ""},
		{"a listener again", map[netip.AddrPort]uint32{listener4: 7}, "answered"},
		{"none", nil, ""},
	} {
		if err := l.SetListeners(c.listeners); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a query that finds the listener, and one for which it is remembered
			before := l.Counters().Results
			l.runAnswer(frame(client4, listener4, query))
			for result, n := range l.Counters().Results {
				if want := before[result]; n != want && result != c.result || n != want+1 && result == c.result {
					t.Errorf("%s: %d packets with the result %q, %d before", c.name, n, result, want)
				}
			}
		}
	}
}

// TestNumberForgotten checks that a client that has lost its number gets a new one when it asks again,
// although its state still has its address.
func TestNumberForgotten(t *testing.T) {
	l := newTestProgram(t)
	packet := frame(client4, listener4, ask(t, "web.default.svc.cluster.local.", dns.TypeA, nil))
	l.runAnswer(packet)
	first := l.client(client4.Addr())
	l.clients.sweep(kernelNow() + 2*clientIdle)
	if l.client(client4.Addr()) != nil || first.Client != newClient(client4.Addr()) {
		t.Fatal("the client is to lose its number, and its state to remain")
	}
	before := first.Place
	for uint64(kernelNow())>>programBoundSTAMP_TIME == before>>programBoundSTAMP_BITS {
		time.Sleep(time.Millisecond) // the next query is to give another stamp
	}
	l.runAnswer(packet)
	second := l.client(client4.Addr())
	if second == nil || second == first || first.Place != before {
		t.Errorf("the client asks with its old number: state %p %+v, was %p %+v", second, second, first, first)
	}
}
