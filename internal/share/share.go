// Package share divides a fixed number of places among clients, so that none of them can
// take them all. A client gets one more place while it holds fewer than are free: alone it
// gets half of all places, two clients get a third each, and n clients that take what they
// can leave one part in n+1 to the next one. A place that nobody needs is lost to nobody:
// what a client may hold grows and shrinks with what is free.
//
// [Places] knows clients by their addresses, and gives each that holds a place a small
// number. [Division] knows them by that number, and is for what a client uses while it has
// a place of [Places]: it counts in a slice, without looking anything up.
package share

import (
	"hash/maphash"
	"net/netip"
	"sync"
)

// Client is the number of a client, as [Places] gives it: from 1 on, and only the client's
// as long as it holds a place there.
type Client int32

// Nobody is for what no client waits for. All of that together counts as one client.
const Nobody Client = 0

// Verdict says whether there is a place.
type Verdict uint8

const (
	// Fits: there is one.
	Fits Verdict = iota
	// Full: all places are taken.
	Full
	// Excess: places are free, but the client holds as many as that already.
	Excess
)

// Division counts the places that clients hold. It is not safe for concurrent use. The
// zero value has no places.
type Division struct {
	limit, used int
	held        []int32 // by the client's number
}

// NewDivision makes a Division of so many places.
func NewDivision(places int) Division { return Division{limit: places} }

// Used is how many places are taken.
func (d *Division) Used() int { return d.used }

// Ask says whether c may take one more place. It takes none.
func (d *Division) Ask(c Client) Verdict {
	switch free := d.limit - d.used; {
	case free <= 0:
		return Full
	case d.Held(c) >= free:
		return Excess
	}
	return Fits
}

// Held is how many places c holds.
func (d *Division) Held(c Client) int {
	if int(c) >= len(d.held) {
		return 0
	}
	return int(d.held[c])
}

// Add counts a place that c takes, whatever [Division.Ask] says. It allocates only where c
// is greater than all clients before.
func (d *Division) Add(c Client) {
	if n := int(c) + 1 - len(d.held); n > 0 {
		d.held = append(d.held, make([]int32, n)...)
	}
	d.held[c]++
	d.used++
}

// Remove gives back a place that was counted for c.
func (d *Division) Remove(c Client) {
	d.held[c]--
	d.used--
}

// Places is places for clients that are known by their addresses. It is safe for concurrent
// use. It remembers only clients that hold a place, so that it is never larger than the
// places there are.
type Places struct {
	seed maphash.Seed

	mu       sync.Mutex
	division Division
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

// NewPlaces makes so many places.
func NewPlaces(n int) *Places {
	chains := 1
	for chains < n {
		chains *= 2
	}
	return &Places{seed: maphash.MakeSeed(), division: NewDivision(n), chains: make([]Client, chains), clients: make([]client, 1)}
}

// Take takes a place for the client at addr, unless the verdict is that there is none. An
// IPv4 address mapped to IPv6 is the IPv4 address; the zone of an address does not count.
// Take allocates only when more clients hold places than ever before.
func (p *Places) Take(addr netip.Addr) (Client, Verdict) {
	key := addr.As16()
	p.mu.Lock()
	defer p.mu.Unlock()
	chain := p.chain(&key)
	c := *chain
	for c != Nobody && p.clients[c].addr != key {
		c = p.clients[c].next
	}
	known := c != Nobody
	if !known {
		c = p.spare()
	}
	if v := p.ask(c, known); v != Fits {
		return Nobody, v
	}
	if !known {
		p.free = p.clients[c].next
		p.clients[c] = client{addr: key, next: *chain}
		*chain = c
	}
	p.division.Add(c)
	return c, Fits
}

// ask is [Division.Ask]; who is not known holds nothing.
func (p *Places) ask(c Client, known bool) Verdict {
	if !known && p.division.used < p.division.limit {
		return Fits
	}
	return p.division.Ask(c)
}

// spare is a number that nobody has.
func (p *Places) spare() Client {
	if p.free == Nobody {
		p.clients = append(p.clients, client{})
		p.free = Client(len(p.clients) - 1)
	}
	return p.free
}

// TakeOwn takes a place for Nobody.
func (p *Places) TakeOwn() Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.division.Ask(Nobody)
	if v == Fits {
		p.division.Add(Nobody)
	}
	return v
}

// Give gives back a place of c's.
func (p *Places) Give(c Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.division.Remove(c)
	if c == Nobody || p.division.Held(c) > 0 {
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
func (p *Places) chain(key *[16]byte) *Client {
	return &p.chains[maphash.Bytes(p.seed, key[:])&uint64(len(p.chains)-1)]
}

// Used is how many places are taken.
func (p *Places) Used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.division.used
}
