// These tests use workerTurns, which is not exported.

package server

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
	"github.com/nodens-dns/nodens/server/resolver"
)

// simulatedTurns is a reader and workers in simulated time: a worker takes a fixed time for the part of a query
// that holds a turn.
type simulatedTurns struct {
	t       *testing.T
	turns   *workerTurns
	now     time.Duration
	started []*pendingQuery // have a turn, in the order in which their workers run
	free    []*pendingQuery
	clients map[netip.Addr]*turnCounts
}

// turnCounts is what became of the queries of a client.
type turnCounts struct {
	number                share.Client
	asked, refused, ended int
	longest               time.Duration // that a query has waited until its worker ran
}

func newSimulatedTurns(t *testing.T) *simulatedTurns {
	return &simulatedTurns{t: t, turns: newWorkerTurns(turnsPerCore), clients: make(map[netip.Addr]*turnCounts)}
}

// count returns the counts of a client, whose number is that of its first query.
func (s *simulatedTurns) count(from netip.Addr) *turnCounts {
	c := s.clients[from]
	if c == nil {
		c = &turnCounts{number: share.Client(len(s.clients) + 1)}
		s.clients[from] = c
	}
	return c
}

// newQuery returns a query that is in no use.
func (s *simulatedTurns) newQuery() *pendingQuery {
	if len(s.free) == 0 {
		return new(pendingQuery)
	}
	w := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return w
}

// ask has the client ask n times at once.
func (s *simulatedTurns) ask(from netip.Addr, n int) {
	c := s.count(from)
	for range n {
		w := s.newQuery()
		w.Request = resolver.Request{Client: netip.AddrPortFrom(from, 53), Place: c.number, Arrival: s.now}
		c.asked++
		switch s.turns.acquire(w, s.now) {
		case turnTaken:
			s.started = append(s.started, w)
		case turnRefused:
			c.refused++
			s.free = append(s.free, w)
		case turnQueued:
		}
	}
}

// work runs n workers, each of which passes its turn on.
func (s *simulatedTurns) work(n int) {
	for ; n > 0 && len(s.started) > 0; n-- {
		w := s.started[0]
		s.started = s.started[1:]
		c := s.count(w.Client.Addr())
		c.ended++
		c.longest = max(c.longest, s.now-w.Arrival)
		s.free = append(s.free, w)
		if next := s.turns.release(w.Place); next != nil {
			s.started = append(s.started, next)
		}
		if len(s.started) > turnsPerCore {
			s.t.Fatalf("%d workers are to run at once, want %d at most", len(s.started), turnsPerCore)
		}
	}
}

// run simulates so many milliseconds, in each of which 30 workers run and flood queries of a client come. In every tenth one each victim asks twice.
func (s *simulatedTurns) run(milliseconds, flood int) {
	const steps = 10
	for i := range milliseconds * steps {
		s.now += time.Millisecond / steps
		s.ask(floodAddr, flood*(i%steps+1)/steps-flood*(i%steps)/steps)
		if i%(10*steps) == 0 {
			for _, v := range turnVictims {
				s.ask(v, 2)
			}
		}
		s.work(30 / steps)
	}
}

var (
	floodAddr   = netip.MustParseAddr("10.0.0.1")
	turnVictims = []netip.Addr{netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("10.0.1.2")}
)

// TestTurnsFlood: beside a client that asks twice as much as the workers can start, others wait for a moment at most
// and lose nothing, from the beginning on. The flood is served with what is left, its line becomes short, and after the
// flood the client is one like others.
func TestTurnsFlood(t *testing.T) {
	s := newSimulatedTurns(t)
	s.run(2000, 60)
	for _, v := range turnVictims {
		if c := s.count(v); c.refused > 0 || c.longest > time.Millisecond {
			t.Errorf("a victim: %+v", c)
		}
	}
	f := s.count(floodAddr)
	if f.refused < 50_000 || f.ended < 58_000 {
		t.Errorf("the flood: %+v", f)
	}
	if f.longest > 3*standingTime {
		t.Errorf("a query of the flood has waited for %v", f.longest)
	}
	if n := s.turns.clients[f.number].waiting; n > maxStandingLine {
		t.Errorf("%d queries of the flood wait in the end", n)
	}
	refused := f.refused
	s.run(int(calmTime/time.Millisecond)+standingMillis, 1)
	s.ask(floodAddr, 1000)
	if f.refused != refused {
		t.Errorf("%d queries are refused after the flood", f.refused-refused)
	}
}

const standingMillis = int(standingTime / time.Millisecond)

// TestTurnsAlone: a client alone loses nothing, however much it asks.
func TestTurnsAlone(t *testing.T) {
	s := newSimulatedTurns(t)
	for range 1000 {
		s.now += time.Millisecond
		s.ask(floodAddr, 31)
		s.work(30)
	}
	if f := s.count(floodAddr); f.refused > 0 || f.ended < 29_900 {
		t.Errorf("%+v", f)
	}
	s.ask(turnVictims[0], 1)
	s.work(turnsPerCore + 2)
	if v := s.count(turnVictims[0]); v.ended != 1 {
		t.Errorf("another client waits for more than one turn of the first one: %+v", v)
	}
}

// TestTurnsClosedLoop: a client with a thousand queries outstanding, each of which it asks again when it is answered or
// has waited, loses nothing while it is alone.
func TestTurnsClosedLoop(t *testing.T) {
	s := newSimulatedTurns(t)
	s.ask(floodAddr, 1000)
	f := s.count(floodAddr)
	for range 1000 {
		s.now += time.Millisecond
		before := f.ended
		s.work(30)
		s.ask(floodAddr, f.ended-before)
	}
	if f.refused > 0 || f.ended != 30_000 {
		t.Errorf("%+v", f)
	}
}

// TestTurnsClosedLoops: clients that each have a hundred queries outstanding, and together ask more than the workers can start, lose
// nothing, and get equal shares.
func TestTurnsClosedLoops(t *testing.T) {
	const clients, outstanding = 8, 100
	s := newSimulatedTurns(t)
	var asking [clients]netip.Addr
	for i := range asking {
		asking[i] = netip.AddrFrom4([4]byte{10, 0, 2, byte(i)})
	}
	for _, v := range asking {
		s.ask(v, outstanding)
	}
	for range 1000 {
		s.now += time.Millisecond
		var before [clients]int
		for i, v := range asking {
			before[i] = s.count(v).ended
		}
		s.work(30)
		for i, v := range asking {
			s.ask(v, s.count(v).ended-before[i])
		}
	}
	for _, v := range asking {
		if c := s.count(v); c.refused > 0 || c.ended < 30_000/clients-outstanding {
			t.Errorf("%s: %+v", v, c)
		}
	}
}

// TestTurnsBurst: a burst beside other clients loses nothing, neither beside idle ones nor beside a flood.
func TestTurnsBurst(t *testing.T) {
	s := newSimulatedTurns(t)
	s.run(100, 1)
	s.ask(floodAddr, 4000)
	s.run(500, 0)
	if f := s.count(floodAddr); f.refused > 0 || f.ended != f.asked {
		t.Errorf("a burst of 4,000: %+v", f)
	}
	s.run(1000, 60)
	s.ask(turnVictims[0], 200)
	s.run(100, 60)
	if v := s.count(turnVictims[0]); v.refused > 0 || v.longest > standingTime {
		t.Errorf("a burst of 200 beside a flood: %+v", v)
	}
}

// TestTurnsStall: queries that came while the process was stopped are no flood, although others waited for a turn
// when it stopped.
func TestTurnsStall(t *testing.T) {
	s := newSimulatedTurns(t)
	s.run(100, 1)
	s.ask(floodAddr, 40)
	s.now += 5 * time.Second
	s.ask(turnVictims[0], 1)
	s.ask(floodAddr, 2000)
	s.run(200, 0)
	if f := s.count(floodAddr); f.refused > 0 || f.ended != f.asked {
		t.Errorf("%+v", f)
	}
}

// TestTurnsNumbers: a client that gets the number of one that flooded is not taken for it.
func TestTurnsNumbers(t *testing.T) {
	s := newSimulatedTurns(t)
	s.run(200, 60)
	f := s.count(floodAddr)
	if f.refused == 0 {
		t.Fatal("no flood")
	}
	s.run(10, 0) // until none of its queries waits
	other := netip.MustParseAddr("10.0.0.9")
	s.count(other).number = f.number
	s.ask(other, 100)
	if c := s.count(other); c.refused > 0 {
		t.Errorf("%d queries of another client are refused", c.refused)
	}
}

// TestTurnsAllocPin: taking a turn, waiting for one and passing it on do not allocate.
func TestTurnsAllocPin(t *testing.T) {
	turns := newWorkerTurns(1)
	first, second := new(pendingQuery), new(pendingQuery)
	first.Place, second.Place = 1, 2
	n := testing.AllocsPerRun(100, func() {
		if turns.acquire(first, 0) != turnTaken || turns.acquire(second, 0) != turnQueued {
			t.Fatal("want the second query to wait for the first one's turn")
		}
		if turns.release(1) != second || turns.release(2) != nil {
			t.Fatal("the second query does not get the turn")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
