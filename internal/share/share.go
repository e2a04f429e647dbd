// Package share divides a fixed number of slots fairly among clients. A client gets another
// slot while it has fewer than are free: a single client gets half of all slots, two clients
// get a third each, and n greedy clients leave one part in n+1 for the next one. No slot is
// reserved: what a client may have grows and shrinks with what is free.
//
// [Limiter] identifies clients by address, and gives each that has a slot a small number.
// [FairShare] identifies them by that number, for other resources that a client uses while
// it has a slot of the [Limiter]: it needs no lookup.
package share

import (
	"hash/maphash"
	"net/netip"
	"sync"
)

// Client is the number that [Limiter] gives a client, 1 or more. It belongs to the client as
// long as the client has a slot.
type Client int32

// NoClient is for work that no client waits for. All such work together counts as one client.
const NoClient Client = 0

// Availability says whether a slot is available.
type Availability uint8

const (
	// Available: a slot is free for the client.
	Available Availability = iota
	// Full: all slots are in use.
	Full
	// OverShare: slots are free, but the client has as many already.
	OverShare
)

// FairShare counts the slots of clients. It is not safe for concurrent use. The zero value
// has no slots.
type FairShare struct {
	limit, used int
	held        []int32 // by the client's number
}

// NewFairShare makes a FairShare with n slots.
func NewFairShare(n int) FairShare { return FairShare{limit: n} }

// InUse returns the number of slots in use.
func (d *FairShare) InUse() int { return d.used }

// Check says whether c may have another slot. It changes nothing.
func (d *FairShare) Check(c Client) Availability {
	switch free := d.limit - d.used; {
	case free <= 0:
		return Full
	case d.InUseBy(c) >= free:
		return OverShare
	}
	return Available
}

// InUseBy returns the number of c's slots.
func (d *FairShare) InUseBy(c Client) int {
	if int(c) >= len(d.held) {
		return 0
	}
	return int(d.held[c])
}

// Add counts another slot for c, whatever [FairShare.Check] says. It allocates only if c is
// greater than all clients before.
func (d *FairShare) Add(c Client) {
	if n := int(c) + 1 - len(d.held); n > 0 {
		d.held = append(d.held, make([]int32, n)...)
	}
	d.held[c]++
	d.used++
}

// Remove takes back one slot of c, which must have one.
func (d *FairShare) Remove(c Client) {
	d.held[c]--
	d.used--
}

// Limiter shares slots among clients that are identified by their addresses. It is safe for
// concurrent use. It remembers only clients that have a slot, so that the number of slots
// bounds its size.
type Limiter struct {
	seed maphash.Seed

	mu    sync.Mutex
	slots FairShare
	// chains are the hash chains: the first client of each, linked by next, ended by NoClient.
	chains []Client
	// clients are indexed by number; the first, NoClient's, is not used.
	clients []client
	free    Client // the first unused number, linked by next
}

type client struct {
	addr [16]byte
	next Client
}

// NewLimiter makes a Limiter with n slots.
func NewLimiter(n int) *Limiter {
	chains := 1
	for chains < n {
		chains *= 2
	}
	return &Limiter{seed: maphash.MakeSeed(), slots: NewFairShare(n), chains: make([]Client, chains), clients: make([]client, 1)}
}

// Acquire takes a slot for the client at addr if one is [Available]. An IPv4 address and its
// IPv6-mapped form are the same client, and zones are ignored. Acquire allocates only when
// more clients have slots than ever before.
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
		c = p.unused()
	}
	if v := p.check(c, known); v != Available {
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

// check is [FairShare.Check]; a client that is not known has no slots.
func (p *Limiter) check(c Client, known bool) Availability {
	if !known && p.slots.used < p.slots.limit {
		return Available
	}
	return p.slots.Check(c)
}

// unused returns an unused number.
func (p *Limiter) unused() Client {
	if p.free == NoClient {
		p.clients = append(p.clients, client{})
		p.free = Client(len(p.clients) - 1)
	}
	return p.free
}

// AcquireShared takes a slot for [NoClient] if one is [Available].
func (p *Limiter) AcquireShared() Availability {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.slots.Check(NoClient)
	if v == Available {
		p.slots.Add(NoClient)
	}
	return v
}

// Release returns one slot of c, which must have one.
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

// chain returns the head of the hash chain for key.
func (p *Limiter) chain(key *[16]byte) *Client {
	return &p.chains[maphash.Bytes(p.seed, key[:])&uint64(len(p.chains)-1)]
}

// InUse returns the number of slots in use.
func (p *Limiter) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.used
}
