// Package share divides a fixed number of places among clients, so that none of them can
// take them all. A client gets one more place while it holds fewer than are free: alone it
// gets half of all places, two clients get a third each, and n clients that take what they
// can leave one part in n+1 to the next one. A place that nobody needs is lost to nobody:
// what a client may hold grows and shrinks with what is free.
//
// [Limiter] knows clients by their addresses, and gives each that holds a place a small
// number. [FairShare] knows them by that number, and is for what a client uses while it has
// a place of [Limiter]: it counts in a slice, without looking anything up.
package share

import (
	"hash/maphash"
	"net/netip"
	"sync"
)

// Client is the number of a client, as [Limiter] gives it: from 1 on, and only the client's
// as long as it holds a place there.
type Client int32

// NoClient is for what no client waits for. All of that together counts as one client.
const NoClient Client = 0

// Availability says whether there is a place.
type Availability uint8

const (
	// Available: there is one.
	Available Availability = iota
	// Full: all places are taken.
	Full
	// OverShare: places are free, but the client holds as many as that already.
	OverShare
)

// FairShare counts the places that clients hold. It is not safe for concurrent use. The
// zero value has no places.
type FairShare struct {
	limit, used int
	held        []int32 // by the client's number
}

// NewFairShare makes a Division of so many places.
func NewFairShare(places int) FairShare { return FairShare{limit: places} }

// InUse is how many places are taken.
func (d *FairShare) InUse() int { return d.used }

// Check says whether c may take one more place. It takes none.
func (d *FairShare) Check(c Client) Availability {
	switch free := d.limit - d.used; {
	case free <= 0:
		return Full
	case d.InUseBy(c) >= free:
		return OverShare
	}
	return Available
}

// InUseBy is how many places c holds.
func (d *FairShare) InUseBy(c Client) int {
	if int(c) >= len(d.held) {
		return 0
	}
	return int(d.held[c])
}

// Add counts a place that c takes, whatever [FairShare.Check] says. It allocates only where c
// is greater than all clients before.
func (d *FairShare) Add(c Client) {
	if n := int(c) + 1 - len(d.held); n > 0 {
		d.held = append(d.held, make([]int32, n)...)
	}
	d.held[c]++
	d.used++
}

// Remove gives back a place that was counted for c.
func (d *FairShare) Remove(c Client) {
	d.held[c]--
	d.used--
}

// Limiter is places for clients that are known by their addresses. It is safe for concurrent
// use. It remembers only clients that hold a place, so that it is never larger than the
// places there are.
type Limiter struct {
	seed maphash.Seed

	mu    sync.Mutex
	slots FairShare
	// chains are the first client of each chain, which leads on by next; Nobody ends it.
	chains []Client
	// clients are by their number; the first is Nobody's and not used.
	clients []client
	free    Client // the first of the numbers that nobody has, which lead on by next
}

type client struct {
	addr [16]byte
	next Client
}

// NewLimiter makes so many places.
func NewLimiter(n int) *Limiter {
	chains := 1
	for chains < n {
		chains *= 2
	}
	return &Limiter{seed: maphash.MakeSeed(), slots: NewFairShare(n), chains: make([]Client, chains), clients: make([]client, 1)}
}

// Acquire takes a place for the client at addr, unless the verdict is that there is none. An
// IPv4 address mapped to IPv6 is the IPv4 address; the zone of an address does not count.
// Take allocates only when more clients hold places than ever before.
func (p *Limiter) Acquire(addr netip.Addr) (Client, Availability) {
	key := addr.As16()
	p.mu.Lock()
	defer p.mu.Unlock()
	chain := p.chain(&key)
	c := *chain
	for c != NoClient && p.clients[c].addr != key {
		c = p.clients[c].next
	}
	known := c != NoClient
	if !known {
		c = p.spare()
	}
	if v := p.ask(c, known); v != Available {
		return NoClient, v
	}
	if !known {
		p.free = p.clients[c].next
		p.clients[c] = client{addr: key, next: *chain}
		*chain = c
	}
	p.slots.Add(c)
	return c, Available
}

// ask is [FairShare.Check]; who is not known holds nothing.
func (p *Limiter) ask(c Client, known bool) Availability {
	if !known && p.slots.used < p.slots.limit {
		return Available
	}
	return p.slots.Check(c)
}

// spare is a number that nobody has.
func (p *Limiter) spare() Client {
	if p.free == NoClient {
		p.clients = append(p.clients, client{})
		p.free = Client(len(p.clients) - 1)
	}
	return p.free
}

// AcquireShared takes a place for Nobody.
func (p *Limiter) AcquireShared() Availability {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.slots.Check(NoClient)
	if v == Available {
		p.slots.Add(NoClient)
	}
	return v
}

// Release gives back a place of c's.
func (p *Limiter) Release(c Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Remove(c)
	if c == NoClient || p.slots.InUseBy(c) > 0 {
		return
	}
	at := p.chain(&p.clients[c].addr)
	for *at != c {
		at = &p.clients[*at].next
	}
	*at = p.clients[c].next
	p.clients[c].next, p.free = p.free, c
}

// chain is where the chain begins that the client at key is in.
func (p *Limiter) chain(key *[16]byte) *Client {
	return &p.chains[maphash.Bytes(p.seed, key[:])&uint64(len(p.chains)-1)]
}

// InUse is how many places are taken.
func (p *Limiter) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.used
}
