// These tests use clients and table, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// groupTest is a testProgram with clients that have groups, and one question.
type groupTest struct {
	*testProgram
	query   []byte
	members epoch.Value // the counter of the groups
	now     uint32      // its value
}

// The clients of groupTest; client4 and client6 are others.
var (
	shopPod = netip.MustParseAddrPort("10.244.1.21:40001")
	infoPod = netip.MustParseAddrPort("10.244.1.22:40001")
)

func newGroupTest(t *testing.T) *groupTest {
	s := &groupTest{testProgram: newTestProgram(t), query: ask(t, "api.shop.shop.svc.cluster.local.", dns.TypeA, nil)}
	cluster, _ := s.Epochs()
	s.members = cluster.AcquireValue()
	s.move()
	s.admit(shopPod.Addr(), time.Minute)
	s.admit(infoPod.Addr(), time.Minute)
	return s
}

// move invalidates all groups.
func (s *groupTest) move() {
	s.now++
	s.members.Store(s.now)
}

// group returns the group with that number at this time.
func (s *groupTest) group(n uint32) Group {
	if n == 0 {
		return Group{}
	}
	return Group{Number: n, Mark: epoch.Mark{Index: s.members.Index, Value: uint64(s.now)}}
}

// join makes a client a member of the group.
func (s *groupTest) join(client netip.AddrPort, n uint32) {
	g := s.group(n)
	s.SetGroup(client.Addr(), &g)
}

// answer returns the answer with an address that ends with last.
func (s *groupTest) answer(n uint32, last byte) *Answer {
	s.t.Helper()
	a := answerTo(s.t, s.query, func(r *wire.Reply) { r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, last}) })
	cluster, _ := s.Epochs()
	a.Mark, a.Group, a.Source = cluster.Mark(5), s.group(n), new(hits)
	return a
}

// putFor makes the answer to a group one with an address that ends with last.
func (s *groupTest) putFor(n uint32, last byte) *hits {
	s.t.Helper()
	a := s.answer(n, last)
	if !s.Put(a) {
		s.t.Fatal("not put")
	}
	return a.Source.(*hits)
}

// expect checks the last byte of the address in the kernel's answer to a client; 0 means that the agent gets
// the query.
func (s *groupTest) expect(what string, client netip.AddrPort, want byte) {
	s.t.Helper()
	verdict, out := s.runAnswer(frame(client, listenerFor(client), s.query))
	got := byte(0)
	if verdict == redirected {
		got = out[len(out)-1]
	}
	if got != want {
		s.t.Errorf("%s: %s gets %d, want %d; %v", what, client, got, want, s.Counters().Results)
	}
}

// TestGroups: a client gets the answers of its group, and those for all clients. It has no group until the agent sets
// one, and after the counter of the groups has moved.
func TestGroups(t *testing.T) {
	s := newGroupTest(t)
	s.putFor(1, 11)
	s.putFor(2, 12)
	s.expect("without a group", shopPod, 0)
	s.join(shopPod, 1)
	s.join(infoPod, 2)
	s.expect("in a group", shopPod, 11)
	s.expect("in another group", infoPod, 12)
	s.expect("beside groups", client4, 0)
	s.join(infoPod, 3)
	s.expect("in a group without an answer", infoPod, 0)
	if n := s.Counters().Results["miss"]; n != 3 {
		t.Errorf("%d of 3 queries are counted as missing", n)
	}
	s.join(infoPod, 2)
	s.move()
	s.expect("after a change", shopPod, 0)
	s.expect("after a change", infoPod, 0)
	s.join(shopPod, 2) // its address is another pod's
	s.expect("in its new group", shopPod, 12)
	s.expect("before the agent has set its group", infoPod, 0)
	stale := s.group(1)
	s.move()
	s.SetGroup(infoPod.Addr(), &stale)
	s.expect("in a group by an older state", infoPod, 0)
}

// TestGroupOfNumber: a group belongs to the client, not to its number.
func TestGroupOfNumber(t *testing.T) {
	s := newGroupTest(t)
	s.putFor(1, 11)
	s.join(shopPod, 1)
	s.expect("in a group", shopPod, 11)
	state := s.client(shopPod.Addr())
	at := stampTime(state.Place) + clientIdle + 2*unit
	s.clients.sweep(at)
	s.clients.sweep(at + sweepInterval)
	if state.Group != 0 || state.Place != 0 {
		t.Errorf("a free number has the state %+v", state)
	}
	s.join(shopPod, 1) // which has no number
	if i := slices.IndexFunc(s.clients.states, func(c programClientState) bool { return c.Group != 0 }); i >= 0 {
		t.Errorf("a client without a number has set the group of number %d", i)
	}
	s.admit(shopPod.Addr(), time.Minute)
	s.expect("with a new number", shopPod, 0)
}

// TestGroupReplaced: an answer for all clients takes the place of answers for groups, and the other way round, so that
// no outdated answer hides the valid one. Its hits are reported.
func TestGroupReplaced(t *testing.T) {
	s := newGroupTest(t)
	cluster, _ := s.Epochs()
	s.join(shopPod, 1)
	s.join(infoPod, 2)
	one, two := s.putFor(1, 11), s.putFor(2, 12)
	s.expect("in a group", shopPod, 11)
	s.expect("in another group", infoPod, 12)
	cluster.Bump(5)
	s.expect("after a change", shopPod, 0)
	all := s.putFor(0, 10)
	for _, client := range []netip.AddrPort{shopPod, infoPod, client4} {
		s.expect("for all", client, 10)
	}
	if *one != 1 || *two != 1 || s.table.usage() != 1 {
		t.Errorf("%d and %d of 1 hits reported, %d answers of 1 left", *one, *two, s.table.usage())
	}
	cluster.Bump(5)
	s.putFor(2, 22)
	s.putFor(1, 21)
	s.expect("in a group again", shopPod, 21)
	s.expect("in another group again", infoPod, 22)
	s.expect("beside groups", client4, 0)
	if *all != 3 || s.table.usage() != 2 {
		t.Errorf("%d of 3 hits reported, %d answers of 2 left", *all, s.table.usage())
	}
	for n := uint32(3); n < 20; n++ { // more groups than a set has ways
		s.putFor(n, byte(100+n))
	}
	s.join(client4, 19)
	s.expect("in the last of many groups", client4, 119)
	if n := s.table.usage(); n > ways {
		t.Errorf("%d answers in a set of %d", n, ways)
	}
}

// TestMoreMarks: each counter ends an answer that depends on it.
func TestMoreMarks(t *testing.T) {
	s := newGroupTest(t)
	cluster, cached := s.Epochs()
	tables := []*epoch.Table{cluster, cluster, cached, cached, cluster, cached}
	hash := func(i int) uint64 { return uint64(5 + i) }
	if len(tables) != MaxMarks {
		t.Fatalf("%d counters, want %d", len(tables), MaxMarks)
	}
	for n := 1; n <= MaxMarks; n++ {
		for moved := range tables {
			a := s.answer(0, byte(n))
			for i := 1; i < n; i++ {
				a.More = append(a.More, tables[i].Mark(hash(i)))
			}
			if !s.Put(a) {
				t.Fatalf("%d marks: not put", n)
			}
			s.expect("unchanged", client4, byte(n))
			tables[moved].Bump(hash(moved))
			want := byte(n)
			if moved < n {
				want = 0
			}
			s.expect("after a change", client4, want)
			if c := s.Copies(a.Query.Name(), dns.TypeA, netip.AddrPort{}); len(c) != 1 || (c[0].State == OutdatedCopy) != (want == 0) || c[0].Grouped {
				t.Errorf("%d marks, counter %d moved: reported %+v", n, moved, c)
			}
		}
	}
	a := s.answer(0, 99)
	a.More = make([]epoch.Mark, MaxMarks)
	if s.Put(a) {
		t.Error("an answer with too many marks is put")
	}
}

// TestSameAnswer: an answer that is there is not written again; one with another mark, group or expiry is.
func TestSameAnswer(t *testing.T) {
	s := newGroupTest(t)
	put := func(edit func(a *Answer)) bool {
		a := s.answer(1, 1)
		a.More = marks(2)
		edit(a)
		seqs := func() (list []uint32) {
			for i := range s.table.slots {
				list = append(list, s.table.slots[i].Seq)
			}
			return list
		}
		before := seqs()
		if !s.Put(a) {
			t.Fatal("not put")
		}
		return !slices.Equal(before, seqs())
	}
	same := func(*Answer) {}
	for _, c := range []struct {
		name    string
		edit    func(a *Answer)
		written bool
	}{
		{"the first", same, true},
		{"the same", same, false},
		{"another first mark", func(a *Answer) { a.Mark.Value++ }, true},
		{"one more mark", func(a *Answer) { a.More = marks(3) }, true},
		{"another mark", func(a *Answer) { a.More[1].Value++ }, true},
		{"another counter", func(a *Answer) { a.More[1].Index++ }, true},
		{"another expiry", func(a *Answer) { a.Expires = clock.Now() + time.Hour }, true},
		{"another group", func(a *Answer) { a.Group.Number = 2 }, true},
		{"no group", func(a *Answer) { a.Group = Group{} }, true},
		{"no group again", func(a *Answer) { a.Group = Group{} }, false},
	} {
		if got := put(c.edit); got != c.written {
			t.Errorf("%s: written %t, want %t", c.name, got, c.written)
		}
	}
}

// TestGroupWhileWritten: an answer of one group never reaches a client of another, while both take turns in one slot.
func TestGroupWhileWritten(t *testing.T) {
	s := newGroupTest(t)
	s.join(shopPod, 1)
	s.join(infoPod, 2)
	cluster, _ := s.Epochs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 20_000 {
			n := uint32(1 + i%2)
			cluster.Bump(5)
			s.Put(s.answer(n, byte(10+n)))
			cluster.Bump(5)
			s.Put(s.answer(0, 10)) // which takes the slot
		}
	}()
	answered := make(map[byte]int)
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		s.Heartbeat()
		for i, client := range []netip.AddrPort{shopPod, infoPod} {
			verdict, out := s.runAnswer(frame(client, listener4, s.query))
			if verdict != redirected {
				continue
			}
			last := out[len(out)-1]
			answered[last]++
			if last != 10 && last != byte(11+i) || !bytes.Equal(out[len(out)-4:len(out)-1], []byte{10, 96, 0}) {
				t.Fatalf("%s gets %x", client, out)
			}
		}
	}
	if len(answered) == 0 {
		t.Error("no query was answered")
	}
}
