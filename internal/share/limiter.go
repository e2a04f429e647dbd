package share

import (
	"hash/maphash"
	"net/netip"
	"sync"
)

const (
	// minLeaving is the least value of Limiter.maxLeaving, for a Limiter with few places.
	minLeaving = 64
	// leavingPart is the part of the places that maxLeaving is.
	leavingPart = 4
	// maxOwnLeaving is how many lost queries may be about to end for the client that holds most to get another place. They are its own, and
	// each takes a worker: with more, a flood that only evicts itself would occupy all cores.
	maxOwnLeaving = 16
	// freePart is the part of the places that background work leaves free.
	freePart = 8
)

// Limiter divides places among clients that are identified by their addresses. It is safe for
// concurrent use. It remembers only clients that have a place, so that the number of places
// bounds its size. All its methods take constant time, but for [Limiter.Close].
//
// A query that has lost its place takes a moment to end. At most a quarter as many queries as
// there are places are in this state. Beyond that, nobody gets a place by eviction. The client that holds most gets none
// while a few are: it would only take places from itself.
type Limiter struct {
	seed              maphash.Seed
	limit, maxLeaving int

	mu      sync.Mutex
	used    int // places in use
	leaving int // places that are lost and not released
	// released counts the places that have been released.
	released uint64
	closed   bool
	// chains are the hash chains: the first client of each, linked by next, ended by NoClient.
	chains []Client
	// clients are indexed by number; the first is NoClient, which is in no chain and bucket.
	clients []client
	free    Client // the first unused number, linked by next
	// buckets are the clients by number of places, in the order in which they came to have so many. most is
	// the highest number with a client.
	buckets []bucket
	most    int
}

// client is a client that has places.
type client struct {
	addr [16]byte
	next Client // in the hash chain, or the list of unused numbers
	// oldest and newest are the ends of the list of places, by the time since when they are held.
	oldest, newest *Place
	count          int    // places
	refs           int    // places, with those that are lost and not released
	before, after  Client // in the bucket
}

// bucket is the clients with one number of places; NoClient is none.
type bucket struct{ first, last Client }

// NewLimiter makes a Limiter with n places, at least one.
func NewLimiter(n int) *Limiter {
	n = max(n, 1)
	chains := 1
	for chains < n {
		chains *= 2
	}
	return &Limiter{
		seed: maphash.MakeSeed(), limit: n, maxLeaving: max(n/leavingPart, minLeaving),
		chains: make([]Client, chains), clients: make([]client, 1), buckets: make([]bucket, 1),
	}
}

// Acquire makes p, which is not held, a place of the client at addr. If no place is free,
// another one is lost for it: the one that background work holds longest, else the one that
// the client with most places holds longest, which may be the client at addr itself. Acquire
// returns false if too many queries that have lost their place have not ended yet.
//
// An IPv4 address and its IPv6-mapped form are the same client, and zones are ignored. Acquire
// allocates only for a Place that is new or was lost, and when more clients have places, or a
// client has more places, than ever before.
func (l *Limiter) Acquire(p *Place, addr netip.Addr) bool { return l.acquire(p, addr, true) }

// AcquireFree is Acquire without eviction: it returns false if no place is free.
func (l *Limiter) AcquireFree(p *Place, addr netip.Addr) bool { return l.acquire(p, addr, false) }

func (l *Limiter) acquire(p *Place, addr netip.Addr, evict bool) bool {
	p.prepare(l)
	key := addr.As16()
	l.mu.Lock()
	var lost chan struct{}
	c := l.find(&key)
	if l.used == l.limit {
		if !evict || !l.mayEvict(c) {
			l.mu.Unlock()
			return false
		}
		lost = l.evict(c)
	}
	if c == NoClient {
		c = l.add(&key)
	}
	l.hold(p, c)
	l.mu.Unlock()
	if lost != nil {
		close(lost)
	}
	return true
}

// AcquireBackground makes p, which is not held, a place of work that no client waits for. It
// returns false unless an eighth of the places is free.
func (l *Limiter) AcquireBackground(p *Place) bool {
	p.prepare(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	if free := l.limit - l.used; free == 0 || free < l.limit/freePart {
		return false
	}
	l.hold(p, NoClient)
	return true
}

// Release gives p back. It must be called once for each place that was acquired, lost or not.
// It waits for the functions that the loss of p has started.
func (l *Limiter) Release(p *Place) {
	l.mu.Lock()
	c := p.client
	if p.held {
		l.drop(p)
	} else {
		l.leaving--
	}
	l.released++
	p.forget()
	p.client = NoClient
	if l.clients[c].refs--; l.clients[c].refs == 0 && c != NoClient {
		l.remove(c)
	}
	l.mu.Unlock()
	p.running.Wait()
}

// Revoke makes p lost, as if it was evicted. It does nothing if p is not held, or lost already.
func (l *Limiter) Revoke(p *Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.held && p.state.Load() == placeLive {
		close(l.lose(p))
	}
}

// InUse returns the number of places in use, without those that are lost.
func (l *Limiter) InUse() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// Progress returns the number of places that are held, or lost and not released yet, and how many places have been
// released so far.
func (l *Limiter) Progress() (taken int, released uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used + l.leaving, l.released
}

// Idle reports whether all places are released, the lost ones included.
func (l *Limiter) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used+l.leaving == 0
}

// Close ends the contexts of all places, and of those that are acquired later. The places stay
// in use until they are released. Close takes time in proportion to the places in use.
func (l *Limiter) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for i := range l.clients {
		for p := l.clients[i].oldest; p != nil; p = p.newer {
			if p.state.Load() == placeLive {
				close(p.end(placeClosed))
			}
		}
	}
}

// mayEvict reports whether a place may be lost for c, which is NoClient if it has none.
func (l *Limiter) mayEvict(c Client) bool {
	if l.clients[NoClient].count == 0 && l.holdsMost(c) {
		return l.leaving < maxOwnLeaving
	}
	return l.leaving < l.maxLeaving
}

// Crowds reports whether no place is free and the client at addr would get another one only from itself.
func (l *Limiter) Crowds(addr netip.Addr) bool {
	key := addr.As16()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used == l.limit && l.clients[NoClient].count == 0 && l.holdsMost(l.find(&key))
}

// holdsMost reports whether no client has more places than c, which is NoClient if it has none.
func (l *Limiter) holdsMost(c Client) bool { return c != NoClient && l.clients[c].count == l.most }

// evict takes the place that is lost for c. The caller closes the channel when it has released the lock.
func (l *Limiter) evict(c Client) chan struct{} {
	loser := l.buckets[l.most].first
	switch {
	case l.clients[NoClient].count > 0:
		loser = NoClient
	case l.holdsMost(c):
		loser = c
	}
	return l.lose(l.clients[loser].oldest)
}

// lose makes p lost. The caller closes the channel, if there is one.
func (l *Limiter) lose(p *Place) chan struct{} {
	l.drop(p)
	l.leaving++
	if p.state.Load() != placeLive { // the Limiter is closed
		return nil
	}
	return p.end(placeEvicted)
}

// hold makes p the newest place of c.
func (l *Limiter) hold(p *Place, c Client) {
	k := &l.clients[c]
	p.client, p.held, p.older, p.newer = c, true, k.newest, nil
	if k.newest != nil {
		k.newest.newer = p
	} else {
		k.oldest = p
	}
	k.newest = p
	k.refs++
	l.used++
	l.count(c, 1)
	if l.closed {
		close(p.end(placeClosed))
	}
}

// drop takes p from its client.
func (l *Limiter) drop(p *Place) {
	k := &l.clients[p.client]
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		k.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		k.newest = p.older
	}
	p.held, p.older, p.newer = false, nil, nil
	l.used--
	l.count(p.client, -1)
}

// count changes the number of c's places by d, which is 1 or -1, and moves c to the bucket of its new number.
func (l *Limiter) count(c Client, d int) {
	k := &l.clients[c]
	was := k.count
	k.count += d
	if c == NoClient {
		return
	}
	if was > 0 {
		l.leave(c, &l.buckets[was])
	}
	if k.count > 0 {
		if k.count == len(l.buckets) {
			l.buckets = append(l.buckets, bucket{})
		}
		l.enter(c, &l.buckets[k.count])
	}
	// Only a client with most places can change which number that is, and only by one.
	if k.count > l.most || was == l.most && l.buckets[was].first == NoClient {
		l.most = k.count
	}
}

// enter puts c at the end of b.
func (l *Limiter) enter(c Client, b *bucket) {
	k := &l.clients[c]
	k.before, k.after = b.last, NoClient
	if b.last != NoClient {
		l.clients[b.last].after = c
	} else {
		b.first = c
	}
	b.last = c
}

// leave takes c out of b.
func (l *Limiter) leave(c Client, b *bucket) {
	k := &l.clients[c]
	if k.before != NoClient {
		l.clients[k.before].after = k.after
	} else {
		b.first = k.after
	}
	if k.after != NoClient {
		l.clients[k.after].before = k.before
	} else {
		b.last = k.before
	}
}

// find returns the client with key, NoClient if it has no places.
func (l *Limiter) find(key *[16]byte) Client {
	c := *l.chain(key)
	for c != NoClient && l.clients[c].addr != *key {
		c = l.clients[c].next
	}
	return c
}

// add gives the client with key, which has no places, a number.
func (l *Limiter) add(key *[16]byte) Client {
	if l.free == NoClient {
		l.clients = append(l.clients, client{})
		l.free = Client(len(l.clients) - 1)
	}
	c, chain := l.free, l.chain(key)
	l.free = l.clients[c].next
	l.clients[c] = client{addr: *key, next: *chain}
	*chain = c
	return c
}

// remove makes the number of c, which has no places, unused.
func (l *Limiter) remove(c Client) {
	at := l.chain(&l.clients[c].addr)
	for *at != c {
		at = &l.clients[*at].next
	}
	*at = l.clients[c].next
	l.clients[c].next, l.free = l.free, c
}

// chain returns the head of the hash chain for key.
func (l *Limiter) chain(key *[16]byte) *Client {
	return &l.chains[maphash.Bytes(l.seed, key[:])&uint64(len(l.chains)-1)]
}
