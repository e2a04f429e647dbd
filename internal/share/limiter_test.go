// These tests use the Limiter's tables, which are not exported.

package share

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// acquire takes n places for the client at a.
func acquire(t *testing.T, l *Limiter, a netip.Addr, n int) (places []*Place) {
	t.Helper()
	for range n {
		p := new(Place)
		if !l.Acquire(p, a) {
			t.Fatalf("no place for %v", a)
		}
		places = append(places, p)
	}
	return places
}

// lost returns which of the places are lost, by index, and checks that all others are not.
func lost(places []*Place) (list []int) {
	for i, p := range places {
		if p.Err() != nil {
			list = append(list, i)
		}
	}
	return list
}

// TestLimiterEvicts: a client may hold all places. Another one that comes gets the place that the client
// with most places holds longest, and a client that holds most gets its own.
func TestLimiterEvicts(t *testing.T) {
	l := NewLimiter(8)
	greedy := acquire(t, l, addr(1), 8)
	other := acquire(t, l, addr(2), 1)
	if diff := cmp.Diff([]int{0}, lost(greedy)); diff != "" {
		t.Errorf("after a newcomer (-want +got):\n%s", diff)
	}
	greedy = append(greedy, acquire(t, l, addr(1), 2)...)
	if diff := cmp.Diff([]int{0, 1, 2}, lost(greedy)); diff != "" {
		t.Errorf("after two more of its own (-want +got):\n%s", diff)
	}
	other = append(other, acquire(t, l, addr(2), 3)...)
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5}, lost(greedy)); diff != "" {
		t.Errorf("when both hold four (-want +got):\n%s", diff)
	}
	other = append(other, acquire(t, l, addr(2), 1)...) // as many as the greedy one: it takes from itself
	if diff := cmp.Diff([]int{0}, lost(other)); diff != "" {
		t.Errorf("the newcomer with most places (-want +got):\n%s", diff)
	}
	acquire(t, l, addr(3), 1) // of two that hold most the one that has held as many longer
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6}, lost(greedy)); diff != "" {
		t.Errorf("after a third client (-want +got):\n%s", diff)
	}
	if n := l.InUse(); n != 8 {
		t.Errorf("%d places are in use, want 8", n)
	}
}

// TestLimiterNeverStarves: beside a client that takes what it can, clients that hold fewer places
// lose none, and each gets every place that it asks for.
func TestLimiterNeverStarves(t *testing.T) {
	l := NewLimiter(64)
	flood := func() {
		for range 100 {
			if p := new(Place); l.Acquire(p, addr(0)) {
				defer func() {
					if p.Err() != nil {
						l.Release(p)
					}
				}()
			}
		}
	}
	var victims []*Place
	for round := range 3 {
		flood()
		for v := range 15 {
			p := new(Place)
			if !l.Acquire(p, addr(1+v)) {
				t.Fatalf("round %d: no place for client %d", round, v)
			}
			victims = append(victims, p)
		}
	}
	flood()
	if n := lost(victims); n != nil {
		t.Errorf("places %v of others are lost", n)
	}
}

// TestLimiterBackground: background work leaves an eighth free and loses its places first.
func TestLimiterBackground(t *testing.T) {
	l := NewLimiter(16)
	background := []*Place{new(Place), new(Place)}
	for _, p := range background {
		if !l.AcquireBackground(p) {
			t.Fatal("no place in an empty limiter")
		}
		if c := p.Client(); c != NoClient {
			t.Errorf("it is of client %d", c)
		}
	}
	greedy := acquire(t, l, addr(1), 12)
	if p := new(Place); !l.AcquireBackground(p) {
		t.Error("no place while an eighth is free")
	} else {
		l.Release(p)
	}
	greedy = append(greedy, acquire(t, l, addr(1), 1)...)
	if l.AcquireBackground(new(Place)) {
		t.Error("a place while less than an eighth is free")
	}
	greedy = append(greedy, acquire(t, l, addr(1), 2)...)
	if diff := cmp.Diff([]int{0}, lost(background)); diff != "" || lost(greedy) != nil {
		t.Errorf("%v of the client are lost, and of the background (-want +got):\n%s", lost(greedy), diff)
	}
	if l.AcquireFree(new(Place), addr(2)) {
		t.Error("a free place where there is none")
	}
	acquire(t, l, addr(2), 1)
	if lost(background) == nil || lost(greedy) != nil || l.Idle() {
		t.Errorf("background %v, client %v", lost(background), lost(greedy))
	}
	if l.AcquireBackground(new(Place)) {
		t.Error("a place for the background in a full limiter")
	}
	one := NewLimiter(1)
	if p := new(Place); !one.AcquireBackground(p) || one.AcquireBackground(new(Place)) {
		t.Error("background work does not get the only place once")
	}
}

// TestLimiterLeaving: while too many queries that have lost their place have not ended, nobody gets a
// place by eviction; the client with most places earlier than others.
func TestLimiterLeaving(t *testing.T) {
	l := NewLimiter(1024)
	greedy := acquire(t, l, addr(1), 1024)
	greedy = append(greedy, acquire(t, l, addr(1), maxOwnLeaving)...)
	if l.Acquire(new(Place), addr(1)) {
		t.Error("a client evicts itself without end")
	}
	for i := range 256 - maxOwnLeaving {
		greedy = append(greedy, acquire(t, l, addr(2+i), 1)...)
	}
	if l.Acquire(new(Place), addr(999)) {
		t.Error("more than a quarter of the places belong to queries that have lost them")
	}
	l.Release(greedy[0])
	greedy = append(greedy[1:], acquire(t, l, addr(999), 1)...)
	for _, p := range greedy {
		l.Release(p)
	}
	if !l.Idle() {
		t.Error("places are in use after all were released")
	}
}

// TestLimiterClients: what is one client and what is another.
func TestLimiterClients(t *testing.T) {
	same := [][2]string{{"192.0.2.1", "::ffff:192.0.2.1"}, {"fe80::1", "fe80::1%eth0"}}
	other := [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}}
	take := func(pair [2]string) (a, b Client) {
		l := NewLimiter(8)
		p := acquire(t, l, netip.MustParseAddr(pair[0]), 1)[0]
		q := acquire(t, l, netip.MustParseAddr(pair[1]), 1)[0]
		return p.Client(), q.Client()
	}
	for _, pair := range same {
		if a, b := take(pair); a != b {
			t.Errorf("%v are two clients", pair)
		}
	}
	for _, pair := range other {
		if a, b := take(pair); a == b {
			t.Errorf("%v are one client", pair)
		}
	}
}

// model is what a Limiter does, by plain lists.
type model struct {
	limit, maxLeaving int
	// held are the places in the order in which they were acquired. background is by the zero address.
	held  []modelPlace
	lost  map[*Place]bool
	since map[netip.Addr]int // which change it was that gave a client its number of places
	// changes counts the changes, step the calls.
	changes, step int
}

type modelPlace struct {
	p    *Place
	addr netip.Addr
}

func (m *model) count(a netip.Addr) (n int) {
	for _, h := range m.held {
		if h.addr == a {
			n++
		}
	}
	return n
}

// loser is the client that loses a place for a.
func (m *model) loser(a netip.Addr) netip.Addr {
	if m.count(netip.Addr{}) > 0 {
		return netip.Addr{}
	}
	best := a
	for _, h := range m.held {
		switch n, most := m.count(h.addr), m.count(best); {
		case n > most, n == most && best != a && m.since[h.addr] < m.since[best]:
			best = h.addr
		}
	}
	return best
}

func (m *model) remove(i int) {
	a := m.held[i].addr
	m.held = slices.Delete(m.held, i, i+1)
	m.changes++
	m.since[a] = m.changes
}

// acquire returns whether p becomes a place of a.
func (m *model) acquire(p *Place, a netip.Addr) bool {
	if len(m.held) == m.limit {
		loser := m.loser(a)
		most := m.maxLeaving
		if loser == a {
			most = maxOwnLeaving
		}
		if len(m.lost) >= most {
			return false
		}
		i := slices.IndexFunc(m.held, func(h modelPlace) bool { return h.addr == loser })
		m.lost[m.held[i].p] = true
		m.remove(i)
	}
	m.held = append(m.held, modelPlace{p, a})
	m.changes++
	m.since[a] = m.changes
	return true
}

func (m *model) acquireBackground(p *Place) bool {
	if free := m.limit - len(m.held); free == 0 || free < m.limit/8 {
		return false
	}
	m.held = append(m.held, modelPlace{p, netip.Addr{}})
	return true
}

func (m *model) release(p *Place) {
	if m.lost[p] {
		delete(m.lost, p)
		return
	}
	m.remove(slices.IndexFunc(m.held, func(h modelPlace) bool { return h.p == p }))
}

// TestLimiterAgainstModel acquires and releases at random, and compares each result, and which places are
// lost, with plain lists. A number is one client's only.
func TestLimiterAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const limit = 40
	l := NewLimiter(limit)
	m := &model{limit: limit, maxLeaving: l.maxLeaving, lost: map[*Place]bool{}, since: map[netip.Addr]int{}}
	free, used := make([]*Place, 0, 2*limit), []*Place{}
	for range 2 * limit {
		free = append(free, new(Place))
	}
	for m.step = range 100_000 {
		if n := random.IntN(100); len(used) > 0 && (n < 48 || len(free) == 0) {
			i := random.IntN(len(used))
			p := used[i]
			used = slices.Delete(used, i, i+1)
			free = append(free, p)
			m.release(p)
			l.Release(p)
		} else {
			p := free[len(free)-1]
			a := addr(1 + min(random.IntN(60), random.IntN(60), random.IntN(60)))
			var got, want bool
			switch n % 8 {
			case 0:
				got, want = l.AcquireBackground(p), m.acquireBackground(p)
			case 1:
				got, want = l.AcquireFree(p, a), len(m.held) < limit && m.acquire(p, a)
			default:
				got, want = l.Acquire(p, a), m.acquire(p, a)
			}
			if got != want {
				t.Fatalf("step %d: %v gets a place: %v, want %v", m.step, a, got, want)
			}
			if got {
				free, used = free[:len(free)-1], append(used, p)
			}
		}
		m.compare(t, l, used)
	}
	if n := len(l.clients); n > limit+l.maxLeaving+1 {
		t.Errorf("the table has grown to %d clients", n)
	}
	for _, p := range used {
		l.Release(p)
	}
	empty := make([]bucket, len(l.buckets))
	if d := cmp.Diff(empty, l.buckets, cmp.AllowUnexported(bucket{})); d != "" || !l.Idle() || l.most != 0 {
		t.Errorf("in the end most is %d, buckets (-want +got):\n%s", l.most, d)
	}
	if d := cmp.Diff(make([]Client, len(l.chains)), l.chains); d != "" {
		t.Errorf("chains in the end (-want +got):\n%s", d)
	}
}

// compare checks that l is in m's state. used are the places that are not released.
func (m *model) compare(t *testing.T, l *Limiter, used []*Place) {
	t.Helper()
	if l.used != len(m.held) || l.leaving != len(m.lost) {
		t.Fatalf("step %d: %d in use and %d leaving, want %d and %d", m.step, l.used, l.leaving, len(m.held), len(m.lost))
	}
	for _, p := range used {
		if lost := p.Err() != nil; lost != m.lost[p] {
			t.Fatalf("step %d: a place of %d is lost: %v, want %v", m.step, p.client, lost, m.lost[p])
		}
	}
	numbers := map[Client]netip.Addr{NoClient: {}}
	for _, h := range m.held {
		if a, ok := numbers[h.p.client]; ok && a != h.addr {
			t.Fatalf("step %d: number %d is %v's and %v's", m.step, h.p.client, a, h.addr)
		}
		numbers[h.p.client] = h.addr
	}
}

// TestLimiterConcurrent: clients that acquire, lose and release places at the same time leave nothing
// behind.
func TestLimiterConcurrent(t *testing.T) {
	l := NewLimiter(16)
	var all sync.WaitGroup
	for c := range 8 {
		all.Go(func() {
			places := make([]Place, 4)
			for range 500 {
				held := 0
				for held < len(places) && l.Acquire(&places[held], addr(c%3)) {
					held++
				}
				for i := range held {
					if p := &places[i]; p.Err() != nil {
						<-p.Done()
					}
					l.Release(&places[i])
				}
			}
		})
	}
	all.Wait()
	if !l.Idle() {
		t.Errorf("%d places are in use", l.InUse())
	}
}

// TestLimiterAllocations: a place costs no memory once as many clients had as many. A place that was lost
// costs its next holder a channel.
func TestLimiterAllocations(t *testing.T) {
	l := NewLimiter(64)
	var d Counts
	var p, q Place
	n := testing.AllocsPerRun(100, func() {
		l.Acquire(&p, addr(1))
		l.Acquire(&q, addr(2))
		d.Add(p.Client())
		d.Add(q.Client())
		d.Remove(p.Client())
		d.Remove(q.Client())
		l.Release(&p)
		l.Release(&q)
	})
	if n != 0 {
		t.Errorf("%v allocations for two places", n)
	}
	l = NewLimiter(1)
	l.Acquire(&p, addr(1))
	if n := testing.AllocsPerRun(100, func() {
		l.Acquire(&q, addr(1))
		l.Release(&p)
		l.Acquire(&p, addr(1))
		l.Release(&q)
	}); n != 2 {
		t.Errorf("%v allocations for two places that are lost", n)
	}
}

func BenchmarkPlace(b *testing.B) {
	l, a := NewLimiter(4096), addr(1)
	var p Place
	b.ReportAllocs()
	for b.Loop() {
		l.Acquire(&p, a)
		l.Release(&p)
	}
}

// BenchmarkEviction is a place that the client with most places loses.
func BenchmarkEviction(b *testing.B) {
	l := NewLimiter(4096)
	places := make([]Place, 4097)
	for i := range 4096 {
		l.Acquire(&places[i], addr(1))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Acquire(&places[(i+4096)%4097], addr(1))
		l.Release(&places[i%4097])
	}
}

// BenchmarkChannel is what places cost that are not divided among clients.
func BenchmarkChannel(b *testing.B) {
	p := make(chan struct{}, 4096)
	for b.Loop() {
		select {
		case p <- struct{}{}:
		default:
		}
		<-p
	}
}
