// Package ratelimit limits how many queries a second each client may ask.
//
// A [Limiter] has a token bucket for each client, kept as one number: the time at which the bucket is full again
// (the theoretical arrival time of the Generic Cell Rate Algorithm, ITU-T I.371). A query moves that time by the
// interval between two queries, and is over the limit if the bucket would then be empty for longer than the burst allows.
//
// The buckets are in a table of fixed size. A row whose bucket is full keeps nothing worth knowing, so it is free for
// another client; a row whose bucket is not full is never taken from its client. Clients for whom there is no free row
// share a few further buckets: neither can they ask without a limit by using many addresses, nor do they affect the
// clients that have a row.
//
// The table has no locks and a query touches one cache line of it.
package ratelimit

import (
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/addrhash"
)

const (
	// rowsPerSet are the rows in which one client can be: a cache line.
	rowsPerSet = 4
	// MaxClients is the number of clients with a bucket of their own, in 128 KiB.
	MaxClients = 8192
	// SharedBuckets are the buckets of all clients beyond MaxClients.
	SharedBuckets = 64
	// exemptFor is how long an address stays exempt before [Options.Exempt] is asked again.
	exemptFor = time.Minute
	// MaxRate bounds [Options.Rate] and [Options.Burst].
	MaxRate = 1_000_000
)

// Options are the settings of a Limiter.
type Options struct {
	// Rate is the number of queries a second that a client may ask, Burst how many of them at once after a pause.
	// Both are from 1 to [MaxRate].
	Rate, Burst int
	// Client returns the address that stands for the client of an IPv6 address: the address itself, or the first one of
	// its network. nil: each address is a client. It is called for each query of an IPv6 address.
	Client func(netip.Addr) netip.Addr
	// Exempt reports whether an address has no limit; nil: none has. It is called when a client gets a row, and
	// once a minute for an address that is exempt. For an address that shares its client with others it is called
	// for each query.
	Exempt func(netip.Addr) bool
	// Lag is how late [Limiter.Add] may be told of queries. So much longer than Burst allows a client saves the rate that
	// it has not used.
	Lag time.Duration
}

// Limiter limits the queries of each client. [New] makes it. It is safe for concurrent use.
type Limiter struct {
	rate, burst int
	// interval is the time between two queries at the rate; tolerance is how far in the future a bucket may be full
	// again when it has one more query.
	interval, tolerance int64
	lag                 int64
	client              func(netip.Addr) netip.Addr
	exempt              func(netip.Addr) bool
	seed                [2]uint64
	sets                [MaxClients / rowsPerSet][rowsPerSet]row
	shared              [SharedBuckets]row
}

// row is a client and its bucket.
type row struct {
	// tag is the hash of the client; 0: the row has not been used.
	tag atomic.Uint64
	// full is when the bucket is full again, in nanoseconds; negative for an exempt address: when it is checked
	// again.
	full atomic.Int64
}

// New returns a limiter.
func New(o Options) *Limiter {
	l := &Limiter{
		rate: o.Rate, burst: o.Burst, interval: int64(time.Second) / int64(o.Rate),
		client: o.Client, exempt: o.Exempt, seed: [2]uint64{rand.Uint64(), rand.Uint64()},
	}
	l.tolerance, l.lag = l.interval*int64(o.Burst-1), int64(o.Lag)
	if l.exempt == nil {
		l.exempt = func(netip.Addr) bool { return false }
	}
	return l
}

// Rate returns [Options.Rate].
func (l *Limiter) Rate() int { return l.rate }

// Burst returns [Options.Burst].
func (l *Limiter) Burst() int { return l.burst }

// Allow counts a query of addr at now, by package clock, and reports whether it is within the limit. One that is not
// does not count. An IPv4 address and its IPv6-mapped form are one client, and zones are ignored. It allocates nothing.
func (l *Limiter) Allow(addr netip.Addr, now time.Duration) bool {
	h, free := l.find(addr)
	if free {
		return true
	}
	set := &l.sets[h%uint64(len(l.sets))]
	for i := range set {
		if set[i].tag.Load() == h {
			ok, valid := l.take(&set[i], int64(now))
			if valid {
				return ok
			}
			break
		}
	}
	return l.allowNew(addr, h, int64(now))
}

// find returns the hash of addr's client. free says that addr is exempt, and shares its client with others.
func (l *Limiter) find(addr netip.Addr) (h uint64, free bool) {
	if l.client != nil && addr.Is6() && !addr.Is4In6() {
		addr = addr.WithZone("")
		if client := l.client(addr); client != addr {
			return l.hash(client), l.exempt(addr)
		}
	}
	return l.hash(addr), false
}

// take takes a query's share from the bucket of x. valid is false if the row is one of an address that has to be checked
// whether it is still exempt.
func (l *Limiter) take(x *row, now int64) (ok, valid bool) {
	for {
		full := x.full.Load()
		if full < 0 {
			return true, -full > now
		}
		from := max(full, now-l.lag)
		if from-now > l.tolerance {
			return false, true
		}
		if x.full.CompareAndSwap(full, from+l.interval) {
			return true, true
		}
	}
}

// allowNew is [Limiter.Allow] for a client without a row, or whose exemption has to be checked again.
func (l *Limiter) allowNew(addr netip.Addr, h uint64, now int64) bool {
	exempt := l.exempt(addr.Unmap().WithZone(""))
	x := l.claim(h, now)
	switch {
	case exempt && x != nil:
		x.full.Store(-now - int64(exemptFor))
		return true
	case exempt:
		return true
	case x == nil:
		x = &l.shared[h>>32%SharedBuckets]
	case x.full.Load() < 0: // of an address that was exempt
		x.full.Store(0)
	}
	ok, _ := l.take(x, now)
	return ok
}

// claim returns a row for the client with the hash h: its own, or else the one that is full for longest. It returns nil
// if all rows are in use. Readers that claim the same row at the same time agree on one client: the loser looks again.
func (l *Limiter) claim(h uint64, now int64) *row {
	set := &l.sets[h%uint64(len(l.sets))]
	for {
		var best *row
		var bestTag uint64
		oldest := max(now-l.lag, 0)
		for i := range set {
			x := &set[i]
			tag, full := x.tag.Load(), x.full.Load()
			if tag == h {
				return x
			}
			if full < 0 {
				full = -full
			}
			if full <= oldest {
				best, bestTag, oldest = x, tag, full
			}
		}
		if best == nil || best.tag.CompareAndSwap(bestTag, h) {
			return best
		}
	}
}

// Limited reports whether a query of addr at now would be over the limit. It counts nothing.
func (l *Limiter) Limited(addr netip.Addr, now time.Duration) bool {
	h, free := l.find(addr)
	if free || l.exempt(addr.Unmap().WithZone("")) {
		return false
	}
	set := &l.sets[h%uint64(len(l.sets))]
	inUse := 0
	for i := range set {
		full := set[i].full.Load()
		if set[i].tag.Load() == h {
			return full-int64(now) > l.tolerance
		}
		if max(full, -full) > max(int64(now)-l.lag, 0) {
			inUse++
		}
	}
	return inUse == rowsPerSet && l.shared[h>>32%SharedBuckets].full.Load()-int64(now) > l.tolerance
}

// hash returns the hash of an address, not 0.
func (l *Limiter) hash(addr netip.Addr) uint64 {
	key := addr.As16()
	return max(addrhash.Sum(&l.seed, &key), 1)
}
