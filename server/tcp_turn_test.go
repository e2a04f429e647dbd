// Internal: takes turns and places of a Server by hand.

package server

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
)

// TestTCPTurn: a connection keeps its turn until that is over, and then clients take turns.
func TestTCPTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, clients := share.NewTurns(1), share.NewLimiter(8)
		connection := func(client string) *tcpTurn {
			c := &tcpTurn{turns: turns}
			if !clients.AcquireFree(&c.place, netip.MustParseAddr(client)) {
				t.Fatal("no number for a client")
			}
			return c
		}
		first := connection("192.0.2.1")
		first.begin(clock.Now())
		order := make(chan string, 4)
		for _, client := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2"} {
			c := connection(client)
			go func() {
				c.begin(clock.Now())
				order <- client
				c.end()
			}()
			synctest.Wait()
		}
		first.begin(first.over - 1)
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal("another connection has a turn that is not over")
		}
		first.begin(first.over) // waits for the others of both clients
		order <- "first"
		for i, want := range []string{"192.0.2.1", "192.0.2.2"} {
			if got := <-order; got != want {
				t.Errorf("turn %d is of %s, want %s", i, got, want)
			}
		}
		first.end()
		first.end() // has no effect
		synctest.Wait()
		if n := len(order); n != 2 {
			t.Errorf("%d other connections had a turn, want 2", n)
		}
	})
}

// TestCrowdedClient: a client is crowded while all places are taken and it has most. Then its connections wait, see goAsync.
func TestCrowdedClient(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler), Limits{Waiting: 4})
	defer func() { _ = s.Shutdown(context.Background()) }()
	greedy, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i, want := range []bool{false, false, false, false, true} {
		if got := s.waiting.Crowds(greedy); got != want {
			t.Errorf("with %d of 4 places the client is crowded: %v, want %v", i, got, want)
		}
		if i < 4 && !s.waiting.Acquire(new(share.Place), greedy) {
			t.Fatal("no place")
		}
	}
	if s.waiting.Crowds(other) {
		t.Error("a client without places is crowded")
	}
}
