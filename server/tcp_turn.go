package server

import (
	"context"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/share"
)

// tcpTurn is a connection's turn to be read from. Data may arrive on all connections at once. If each of them were answered as soon as
// its goroutine is scheduled, a reader of UDP that the scheduler has preempted would wait for all of them. So a turn is as short as a few
// batches of UDP queries, there are as many turns as cores, and clients, not connections, take turns. A connection gives its turn
// back before it waits for anything else. A tcpTurn belongs to the connection's reader.
type tcpTurn struct {
	turns *share.Turns
	// place gives the client its number. It is held as long as the connection is served.
	place share.Place
	held  bool
	over  time.Duration // when the turn is over, by package clock
}

const (
	// turnLength is how long a turn lasts, but for the query that exceeds it.
	turnLength = 100 * time.Microsecond
	// asyncCost is what a query costs that waits: another goroutine spends that time on it, soon.
	asyncCost = 25 * time.Microsecond
	// turnPlaces is how many connections are told apart by client, over all addresses. All beyond are one client.
	turnPlaces = 16 << 10
)

// begin makes the turn last from now on. It waits for one unless the connection has one that is not over.
func (t *tcpTurn) begin(now time.Duration) {
	if t.held && now < t.over {
		return
	}
	if t.held {
		t.end()
	}
	_ = t.turns.Take(context.Background(), t.place.Client()) // it does not end without a turn
	t.held, t.over = true, clock.Now()+turnLength
}

// end gives the turn back, if the connection has one.
func (t *tcpTurn) end() {
	if t.held {
		t.held = false
		t.turns.Pass(t.place.Client())
	}
}
