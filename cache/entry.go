package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// kind says which of a cache's two LRU lists an entry is in: denial is for NXDOMAIN,
// NODATA and failures.
type kind uint8

const (
	success kind = iota
	denial
	kinds = 2
)

// flags are the bits of an entry. doFlag, cdFlag and optionsFlag belong to the key.
type flags uint16

const (
	denialFlag     flags = 1 << iota // the kind
	doFlag                           // the query had the DO bit
	cdFlag                           // the query had the CD bit
	failedFlag                       // expired, and a refresh failed or is under way; see [entry.retryAt]
	cutFlag                          // no name at or below this one exists (RFC 8020)
	leasedFlag                       // a copy may exist, see [Cache.Lease]
	refreshingFlag                   // a client was told to refresh the entry before it expires
	keptFlag                         // the name is one of `keep`
	optionsFlag                      // upstream servers got EDNS options with the query; packed holds them

	keyFlags = doFlag | cdFlag | optionsFlag
)

// keyFlagsOf returns the flags of q that belong to its key.
func keyFlagsOf(q *wire.Query) (f flags) {
	if q.DO {
		f |= doFlag
	}
	if q.CD() {
		f |= cdFlag
	}
	if len(q.Options) > 0 {
		f |= optionsFlag
	}
	return f
}

// entry is a cached reply. The lock of its shard guards it, but packed never changes.
type entry struct {
	packed   wire.Packed
	expires  time.Duration // on the store's clock
	lastUsed time.Duration // on the store's clock; no two entries of a shard have the same
	ttl      uint32        // the original TTL in seconds; or, with failedFlag, retryAt
	hits     uint16        // successive hits for `prefetch`; other caches don't count them
	flags    flags
}

// entryOverhead is what an entry takes besides the bytes of its reply: the entry (48), the
// list's element (80) and the map's share. The map has 17 bytes per slot and is 7/16 to
// 7/8 full.
const entryOverhead = 48 + 80 + 28

// size returns the bytes the entry counts for in the budget.
func (e *entry) size() int64 { return entryOverhead + int64(e.packed.Size()) }

func (e *entry) kind() kind {
	if e.flags&denialFlag != 0 {
		return denial
	}
	return success
}

// positive reports whether e answers its question.
func (e *entry) positive() bool { return e.kind() == success && e.packed.Answers() > 0 }

func (e *entry) alive(now time.Duration) bool { return now < e.expires }

// remaining returns the TTL at now, rounded up, so that an entry that is alive has a TTL of
// at least 1. It is bounded because now may have been read before the entry was stored.
func (e *entry) remaining(now time.Duration) uint32 { return min(seconds(e.expires-now), e.ttl) }

// fetchedAt returns when the reply came from upstream. It is unknown with failedFlag.
func (e *entry) fetchedAt() time.Duration { return e.expires - time.Duration(e.ttl)*time.Second }

// backOff marks an expired entry so that no client refreshes it before at, which is rounded
// down to whole seconds.
func (e *entry) backOff(at time.Duration) {
	e.flags |= failedFlag
	e.ttl = uint32(at / time.Second)
}

// retryAt returns the time that backOff set.
func (e *entry) retryAt() time.Duration { return time.Duration(e.ttl) * time.Second }

// maxHits is the highest count of hits; config allows no higher `prefetch` amount.
const maxHits = 1<<16 - 1

// countHits adds n hits at now. Hits count as successive if they are at most gap apart, as
// in CoreDNS. Call it before the entry's use is recorded.
func (e *entry) countHits(now, gap time.Duration, n uint64) {
	before := uint64(e.hits)
	if now-e.lastUsed > gap {
		before = 0
	}
	e.hits = uint16(min(before+n, maxHits)) //nolint:gosec // bounded by maxHits
}

// needsPrefetch reports whether a client is to refresh the entry before it expires.
func (e *entry) needsPrefetch(f *config.Prefetch, now time.Duration) bool {
	return e.flags&refreshingFlag == 0 && int(e.hits) >= f.Amount && e.remaining(now) <= e.prefetchTTL(f)
}

// prefetchTTL returns the remaining TTL from which on the entry may be refreshed.
func (e *entry) prefetchTTL(f *config.Prefetch) uint32 {
	return uint32((uint64(e.ttl)*uint64(f.Percent) + 99) / 100)
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }
