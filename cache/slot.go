package cache

import (
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// kind is which list of a cache an entry is in: denial is for NXDOMAIN, NODATA and
// failures.
type kind uint32

const (
	success kind = iota
	denial
	kinds = 2
)

// The lowest bits of [slot.owner]; above them stands the number of the part.
const (
	kindBit = 1
	doBit   = 2
	cdBit   = 4
	// failedBit says of an expired entry that asking anew has failed, or is under way:
	// its life is then the second from which on the next may ask.
	failedBit = 8
	// cutBit says that the name does not exist, whatever the type, nor any below it.
	cutBit = 16
	// copiedBit says that somebody may keep a copy, see [Cache.Lease].
	copiedBit  = 32
	ownerShift = 6

	// stateBits are those that are not of the key.
	stateBits = kindBit | failedBit | cutBit | copiedBit
)

// tags are the bits of q that stand in a slot's owner and not in the question.
func tags(q *wire.Query) (t uint32) {
	if q.DO {
		t |= doBit
	}
	if q.CD() {
		t |= cdBit
	}
	return t
}

// entry is a reply on its way into the cache; with a life of 0 it is none.
type entry struct {
	packed wire.Packed
	kind   kind
	stored time.Duration // on the store's clock
	life   time.Duration
	cut    bool // see cutBit
	warm   bool // it was fetched for the sake of the one in its place, whose hits count on
	// heard says that a server knew what to say, failed that none did, or none was heard:
	// nothing that could take the place of an expired answer. An ask that ended for a
	// reason of our own is neither.
	heard, failed bool
}

// ref is a slot's number within its shard; none is no slot.
type ref uint32

const none ref = 0

// slot is an entry in its place. It has 64 bytes, a line of the CPU's caches, and
// its segment is aligned. The key is the question of packed, and owner.
type slot struct {
	packed  wire.Packed
	expires time.Duration // on the store's clock
	used    uint64        // when, above hitBits for the hits
	hash    uint32        // the low half
	life    uint32        // in seconds; see failedBit
	owner   uint32        // the part's number and the bits above
	chain   ref           // the next of the bucket
	newer   ref           // the neighbours in the list
	older   ref
}

// slotBytes is the size of a slot, which a test holds.
const slotBytes = 64

// cost is what the entry takes.
func (e *slot) cost() int64 { return slotBytes + int64(e.packed.Size()) }

// The moment of the last use stands in used above the hits, in ticks of 1,024 ns: no
// two in a shard are the same, so that they are the order of use, too. 48 bits are
// nine years. Only caches with prefetch count hits.
const (
	hitBits  = 16
	tickBits = 10
	hitMask  = 1<<hitBits - 1
	// claimed in place of the hits says that somebody is sent to fetch the name again.
	claimed = hitMask
)

func (e *slot) alive(now time.Duration) bool { return now < e.expires }

// left is the TTL at now. A second that has begun counts, so that what lives has a
// TTL of at least one. now may have been read before the entry came, hence the
// bound.
func (e *slot) left(now time.Duration) uint32 { return min(seconds(e.expires-now), e.life) }

// beat counts n hits at now, before the entry is touched, as CoreDNS does: those within
// gap of each other. A name that is being fetched again stays at claimed.
func (e *slot) beat(now, gap time.Duration, n uint64) {
	hits := e.used & hitMask
	switch {
	case hits == claimed:
		return
	case now-time.Duration(e.used>>hitBits<<tickBits) > gap:
		hits = min(n, claimed-1)
	default:
		hits = min(hits+n, claimed-1)
	}
	e.used = e.used&^hitMask | hits
}

// due reports whether the entry is to be fetched again before its end.
func (e *slot) due(f *config.Prefetch, now time.Duration) bool {
	hits := e.used & hitMask
	return hits != claimed && hits >= uint64(f.Amount) && e.left(now) <= e.late(f)
}

// late is the TTL from which on the entry may be fetched again before its end.
func (e *slot) late(f *config.Prefetch) uint32 {
	return uint32((uint64(e.life)*uint64(f.Percent) + 99) / 100)
}

// seconds is d in seconds, rounded up.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

// segmentSlots is the number of slots that are allocated at once. 512 have 32 KiB:
// the least that Go allocates as pages of their own, aligned and without a header.
// Twice as much would double what is allocated under the lock, and what a shard
// with one entry holds.
const (
	segmentShift = 9
	segmentSlots = 1 << segmentShift
)

type segment [segmentSlots]slot

// slab is the slots of a shard: those from 1 to last are in use, without a gap.
// Number 0 is [none].
type slab struct {
	segments []*segment
	last     ref
}

func (s *slab) at(i ref) *slot { return &s.segments[i>>segmentShift][i%segmentSlots] }

// grow takes one more slot into use.
func (s *slab) grow() ref {
	s.last++
	if int(s.last>>segmentShift) >= len(s.segments) {
		s.segments = append(s.segments, new(segment))
	}
	return s.last
}

// shrink gives back the last slot. One empty segment is kept, so that an entry that
// comes and goes at a border allocates nothing.
func (s *slab) shrink() {
	*s.at(s.last) = slot{}
	s.last--
	if n := len(s.segments) - 1; n > int(s.last>>segmentShift)+1 {
		s.segments[n] = nil
		s.segments = s.segments[:n]
	}
}
