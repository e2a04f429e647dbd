package upstream

import (
	"net/netip"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/addrhash"
)

const (
	// clientSlots is how many clients a Pool tells apart where it estimates delays and bounds hedges. Clients beyond share slots by
	// the hash of their address.
	clientSlots = 64
	// noSlot is the slot of background work; the others follow it.
	noSlot = 0
	// maxOwnHedges is how many hedges one client can save up that no other client can use.
	maxOwnHedges = 4
)

// slotOf returns the slot of a client.
func (b *base) slotOf(addr netip.Addr) int {
	if !addr.IsValid() {
		return noSlot
	}
	a := addr.As16()
	return 1 + int(addrhash.Sum(&b.seed, &a)%clientSlots)
}

// clientTails are the 95th percentiles of the response times that each client sees: the slow names that one client asks for
// must not delay the repetition of what others have lost.
type clientTails [1 + clientSlots]tail

// observe adds a sample of the client in slot; see [rtt.observe].
func (c *clientTails) observe(slot int, took int64, counted bool) {
	if slot != noSlot {
		c[slot].observe(took, counted)
	}
}

// hedgeBudgets bound the hedges of a Pool to 5 % of its queries. The credit that a client earns is its own up to
// maxOwnHedges, and everybody's beyond that: a client that uses up the common credit leaves others what they have earned.
// It is safe for concurrent use.
type hedgeBudgets struct {
	hedgeBudget
	own [1 + clientSlots]atomic.Int64 // as hedgeBudget.credit
}

func newHedgeBudgets() *hedgeBudgets {
	b := &hedgeBudgets{}
	b.credit.Store(maxHedgeBurst * queriesPerHedge)
	for i := range b.own {
		b.own[i].Store(queriesPerHedge)
	}
	return b
}

// depositFor adds the credit for one query of the client in slot. Of two concurrent calls one may be lost.
func (b *hedgeBudgets) depositFor(slot int) {
	if slot != noSlot {
		if own := &b.own[slot]; own.Load() < maxOwnHedges*queriesPerHedge {
			own.Add(1)
			return
		}
	}
	b.deposit()
}

// withdrawFor pays for one hedge of the client in slot; false if the credit is too low.
func (b *hedgeBudgets) withdrawFor(slot int) bool {
	if b.withdraw() {
		return true
	}
	if slot == noSlot {
		return false
	}
	own := &b.own[slot]
	for n := own.Load(); n >= queriesPerHedge; n = own.Load() {
		if own.CompareAndSwap(n, n-queriesPerHedge) {
			return true
		}
	}
	return false
}

// refund returns what one hedge has cost.
func (b *hedgeBudgets) refund() {
	if b.credit.Load() < maxHedgeBurst*queriesPerHedge {
		b.credit.Add(queriesPerHedge)
	}
}

// hedgeBudget bounds the queries that are hedged. It is safe for concurrent use.
type hedgeBudget struct {
	credit atomic.Int64 // in queries; queriesPerHedge of them pay for one hedge
}

const (
	// queriesPerHedge is how many queries earn one hedge: 5 %, the share beyond the 95th
	// percentile.
	queriesPerHedge = 20
	// maxHedgeBurst is how many hedges can be saved up. It covers the queries sent at some
	// hundreds per second until a frozen server becomes suspect.
	maxHedgeBurst = 16
)

// deposit adds one query's credit. Of two concurrent calls one may be lost.
func (b *hedgeBudget) deposit() {
	if n := b.credit.Load(); n < maxHedgeBurst*queriesPerHedge {
		b.credit.CompareAndSwap(n, n+1)
	}
}

// withdraw pays for one hedge; false if the credit is too low.
func (b *hedgeBudget) withdraw() bool {
	for n := b.credit.Load(); n >= queriesPerHedge; n = b.credit.Load() {
		if b.credit.CompareAndSwap(n, n-queriesPerHedge) {
			return true
		}
	}
	return false
}
