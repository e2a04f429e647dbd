package connlimit_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/connlimit"
)

// conn is a connection that a test moves by hand.
type conn struct {
	name   string
	client netip.Addr
	last   time.Duration
	busy   bool
}

func (c *conn) ClientAddr() netip.Addr          { return c.client }
func (c *conn) Activity() (time.Duration, bool) { return c.last, c.busy }

// open makes a connection of its text: a client, when it was last active, and "!" if it
// is busy, as in "a7" or "b3!".
func open(t *testing.T, text string) *conn {
	t.Helper()
	var client byte
	var last int
	name, busy := strings.CutSuffix(text, "!")
	if _, err := fmt.Sscanf(name, "%c%d", &client, &last); err != nil {
		t.Fatal(err)
	}
	return &conn{text, netip.AddrFrom4([4]byte{192, 0, 2, client}), time.Duration(last), busy}
}

// TestAdd: who goes when a limit is met.
func TestAdd(t *testing.T) {
	const total, perClient = 6, 3
	for _, c := range []struct {
		name, open, comes string
		fair, force       bool
		goes              string // "" is nobody
		met               connlimit.Limit
		refused           bool
	}{
		{name: "there is room", open: "a1 a2 b3", comes: "b9"},
		{name: "a client with all it may have loses its own", open: "b1 a2 a3 a4", comes: "a9", goes: "a2", met: connlimit.Client},
		{name: "but not a busy one", open: "b1 a2! a3 a4", comes: "a9", goes: "a3", met: connlimit.Client},
		{name: "or is refused", open: "b1 a2! a3! a4!", comes: "a9", met: connlimit.Client, refused: true},
		{name: "unless one has to go", open: "b1 a2! a3! a4!", comes: "a9", force: true, goes: "a2!", met: connlimit.Client},
		{name: "and an idle one goes first", open: "b1 a2! a3! a4", comes: "a9", force: true, goes: "a4", met: connlimit.Client},
		{name: "full: the longest idle", open: "b1 a2 a3 a4 c5 c6", comes: "d9", goes: "b1", met: connlimit.Total},
		{name: "full: no busy one", open: "b1! a2 a3 a4 c5 c6", comes: "d9", goes: "a2", met: connlimit.Total},
		{name: "full and all busy", open: "b1! a2! a3! a4! c5! c6!", comes: "d9", met: connlimit.Total, refused: true},
		{name: "full and fair: of the client that has most", open: "b1 a2 a3 a4 c5 c6", comes: "d9", fair: true, goes: "a2", met: connlimit.Total},
		{name: "full and fair: whatever the new one's client has", open: "b1 a4 a5 a6 b7 c8", comes: "c9", fair: true, goes: "a4", met: connlimit.Total},
		{name: "full and fair: its busy ones stay", open: "b1 a2! a3! a4 c5 c6", comes: "d9", fair: true, goes: "a4", met: connlimit.Total},
		{name: "full and fair: all of its own busy", open: "b1 a2! a3! a4! c5 c6", comes: "d9", fair: true, goes: "c5", met: connlimit.Total},
		{name: "full and fair: all have one", open: "f3 a2 b4 c1 d5 e6", comes: "g9", fair: true, goes: "c1", met: connlimit.Total},
		{name: "full, fair and forced", open: "b1! a2! a3! a4! c5! c6!", comes: "d9", fair: true, force: true, goes: "a2!", met: connlimit.Total},
		{name: "full and fair: its own, with as many as any other", open: "b1 b2 a3 a4 c5 c6", comes: "c9", fair: true, goes: "c5", met: connlimit.Total},
		{name: "full and fair: not of one with as many", open: "b1 b2 a3 a4 c5! c6!", comes: "c9", fair: true, met: connlimit.Total, refused: true},
		{name: "full and fair: of one with more, though its own are idle", open: "b1 a4 a5 a6 c2 d8", comes: "c9", fair: true, goes: "a4", met: connlimit.Total},
		{name: "full and fair: a new client's never refused while one is idle", open: "b1! b2! a3! a4! c5! d6", comes: "e9", fair: true, goes: "d6", met: connlimit.Total},
		{name: "full and fair: all busy", open: "b1! b2! a3! a4! c5! d6!", comes: "e9", fair: true, met: connlimit.Total, refused: true},
		{name: "full, fair and forced: also of one with as many", open: "b1 b2 a3! a4! c5! c6!", comes: "c9", fair: true, force: true, goes: "b1", met: connlimit.Total},
		{name: "both limits", open: "b1 a2 a3 a4 c5 c6", comes: "a9", fair: true, goes: "a2", met: connlimit.Client},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := connlimit.Set[*conn]{Total: total, PerClient: perClient, Fair: c.fair, Force: c.force}
			before := strings.Fields(c.open)
			for _, text := range before {
				if _, evict, _, ok := s.Add(open(t, text)); evict || !ok {
					t.Fatalf("%s found no room", text)
				}
			}
			victim, evict, met, ok := s.Add(open(t, c.comes))
			if evict && victim.name != c.goes {
				t.Errorf("%s goes, want %q", victim.name, c.goes)
			}
			if evict != (c.goes != "") || met != c.met || ok == c.refused {
				t.Errorf("evict %v, met %d, ok %v; want %+v", evict, met, ok, c)
			}
			want := slices.DeleteFunc(before, func(text string) bool { return text == c.goes })
			if !c.refused {
				want = append(want, c.comes)
			}
			if d := cmp.Diff(slices.Sorted(slices.Values(want)), names(&s)); d != "" {
				t.Errorf("the set (-want +got):\n%s", d)
			}
		})
	}
}

// TestBusyConns: clients whose connections are all busy leave room for others. They share what is nearly full, and the client with
// most loses a busy one to a client with an eighth as many.
func TestBusyConns(t *testing.T) {
	const total, perClient = 1024, 128
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n / 256), byte(n)}) }
	for _, c := range []struct {
		name      string
		attackers int
		victims   int // the least connections that a client gets beside them
	}{
		{"one", 1, perClient}, {"as many as their limits fill the listener", 8, 50}, {"more", 32, 14}, {"of many addresses", 113, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := connlimit.Set[*conn]{Total: total, PerClient: perClient, Fair: true}
			for i := range 2 * total {
				s.Add(&conn{client: client(i % c.attackers), last: time.Duration(i), busy: true})
			}
			before, got := s.Len(), 0
			for i := range perClient {
				victim, evict, _, ok := s.Add(&conn{client: client(5000), last: time.Duration(i), busy: true})
				if !ok || evict && victim.client == client(5000) {
					break
				}
				got++
			}
			if got < c.victims {
				t.Errorf("beside %d connections a client gets %d, want %d", before, got, c.victims)
			}
			if s.Len() > total {
				t.Errorf("%d connections", s.Len())
			}
		})
	}
	t.Run("idle ones of others stay", func(t *testing.T) {
		s := connlimit.Set[*conn]{Total: 32, PerClient: 32, Fair: true}
		for i := range 32 {
			s.Add(&conn{client: client(1 + max(0, i-27)), last: time.Duration(32 - i), busy: i < 28}) // the others have idle ones
		}
		victim, evict, _, ok := s.Add(&conn{client: client(100), last: 100, busy: true})
		if !ok || !evict || victim.client != client(1) {
			t.Errorf("admitted %v, evicted %v: %+v", ok, evict, victim)
		}
	})
	t.Run("full", func(t *testing.T) {
		s := connlimit.Set[*conn]{Total: 32, PerClient: 32, Fair: true}
		for i := range 32 {
			s.Add(&conn{client: client(1 + max(0, i-27)), last: time.Duration(i), busy: true}) // one has 28, others one each
		}
		if n := s.Len(); n != 32 {
			t.Fatalf("%d connections, want it full", n)
		}
		for i := range 3 {
			victim, evict, _, ok := s.Add(&conn{client: client(100), last: time.Duration(100 + i), busy: true})
			if !ok || !evict || victim.client != client(1) {
				t.Errorf("connection %d of another client: admitted %v, evicted %v", i, ok, evict)
			}
		}
		if _, _, _, ok := s.Add(&conn{client: client(100), last: 200, busy: true}); ok {
			t.Error("a client with more than an eighth takes a busy connection")
		}
	})
}

func names(s *connlimit.Set[*conn]) (list []string) {
	for c := range s.All() {
		list = append(list, c.name)
	}
	slices.Sort(list)
	return list
}

// TestBounds: whatever comes and goes, no limit is ever passed, and nothing is left of
// those that are gone.
func TestBounds(t *testing.T) {
	const total, perClient, clients = 20, 4, 12
	random := rand.New(rand.NewPCG(1, 2))
	for _, fair := range []bool{false, true} {
		s := connlimit.Set[*conn]{Total: total, PerClient: perClient, Fair: fair}
		var all []*conn
		for i := range 5000 {
			c := &conn{client: netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(clients))}), last: time.Duration(i), busy: random.IntN(4) == 0}
			victim, evict, _, ok := s.Add(c)
			if evict && victim.busy {
				t.Fatal("a busy connection goes")
			}
			if ok {
				all = append(all, c)
			}
			for range random.IntN(3) {
				s.Remove(all[random.IntN(len(all))]) // which may be gone already
			}
			all[random.IntN(len(all))].busy = false
			held := make(map[netip.Addr]int)
			for c := range s.All() {
				held[c.client]++
			}
			for client, n := range held {
				if n > perClient {
					t.Fatalf("%s has %d connections", client, n)
				}
			}
			if s.Len() > total || s.Clients() != len(held) {
				t.Fatalf("%d connections of %d clients, counted as %d", s.Len(), len(held), s.Clients())
			}
		}
		for _, c := range all {
			s.Remove(c)
		}
		if s.Len() != 0 || s.Clients() != 0 {
			t.Errorf("%d connections of %d clients are left of none", s.Len(), s.Clients())
		}
	}
}
