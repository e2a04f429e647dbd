package ratelimit

import (
	"net/netip"
	"time"
)

// Add counts n queries of addr that were answered without asking [Limiter.Allow], by now, by package clock, since the
// last call and within [Options.Lag]. They count whether they are within the limit or not. It allocates nothing.
func (l *Limiter) Add(addr netip.Addr, n uint64, now time.Duration) {
	h, free := l.find(addr)
	if free || n == 0 {
		return
	}
	x := l.row(h)
	if x == nil {
		if l.exempt(addr.Unmap().WithZone("")) {
			return
		}
		x = l.claimUsed(h, int64(now))
	}
	cost := l.interval * int64(min(n, 1<<32))
	most := int64(now) + l.tolerance + l.interval + l.lag // n may be wrong
	for {
		full := x.full.Load()
		next := min(max(full, int64(now)-l.lag)+cost, most)
		// full < 0: the client is exempt.
		if full < 0 || next <= full || x.full.CompareAndSwap(full, next) {
			return
		}
	}
}

// row returns the row of the client with the hash h, nil if it has none.
func (l *Limiter) row(h uint64) *row {
	set := &l.sets[h%uint64(len(l.sets))]
	for i := range set {
		if set[i].tag.Load() == h {
			return &set[i]
		}
	}
	return nil
}

// claimUsed returns a row for the client with the hash h, which is not exempt; a shared bucket if there is none.
func (l *Limiter) claimUsed(h uint64, now int64) *row {
	x := l.claim(h, now)
	if x == nil {
		return &l.shared[h>>32%SharedBuckets]
	}
	if full := x.full.Load(); full < 0 { // of an address that was exempt
		x.full.CompareAndSwap(full, 0)
	}
	return x
}
