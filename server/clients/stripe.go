package clients

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// The counters of a client. Each query has one of the results, and one of hits, upstream and shed.
const (
	noError = iota
	nxDomain
	hits
	upstream
	waste
	aaaa
	rareCounters // and those that follow: of few queries, or of none that the agent answers
	kernel       = iota - 1
	servFail
	otherResult
	shed
	slow
	stream
	truncated
	capped
	aaaaUpstream
	limited     // and those that follow: by Reason
	numCounters = limited + int(numReasons)
)

// counters are the counters of one client or of an owner.
type counters [numCounters]uint64

// add adds n to c.
func (c *counters) add(n *counters) {
	for i := range c {
		c[i] += n[i]
	}
}

// lowCounters are the low halves of counters. There are several for each owner.
type lowCounters [numCounters]uint32

// low returns the low halves of c.
func (c *counters) low() (n lowCounters) {
	for i := range c {
		n[i] = uint32(c[i])
	}
	return n
}

// since returns what was counted since n, in which no counter has grown by 2^32 or more: in an hour that is a million
// queries a second.
func (c *counters) since(n *lowCounters) (d counters) {
	for i := range c {
		d[i] = uint64(uint32(c[i]) - n[i])
	}
	return d
}

// any reports whether anything was counted.
func (c *counters) any() bool { return *c != counters{} }

// queries returns the number of queries.
func (c *counters) queries() uint64 { return c[noError] + c[nxDomain] + c[servFail] + c[otherResult] }

// slot has what was counted of one client in one stripe since the last reading, which is some seconds ago. A busy
// stripe has other data in the CPU's first caches when the client asks again, so that each cache line
// that a query touches takes time.
type slot struct {
	key      addrKey
	identity uint32 // of the client; 0 in other
	// n has the counters except the rare ones, the histogram of latencies, and the rare ones: most
	// queries touch the first of three cache lines only.
	n     [numCounters + LatencyBuckets]uint32
	taken bool

	_ [7]byte
}

// place returns the index of a counter in the slot.
func place(counter int) int {
	if counter < rareCounters {
		return counter
	}
	return counter + LatencyBuckets
}

// add adds n to a counter.
func (s *slot) add(counter int, n uint64) { s.n[place(counter)] += uint32(n) }

// count counts q. slowFrom is the least latency of a slow query.
func (s *slot) count(q *Query, slowFrom time.Duration) {
	s.add(resultOf(q), 1)
	s.add(sourceOf(q), 1)
	if q.Waste {
		s.add(waste, 1)
	}
	if q.AAAA {
		s.add(aaaa, 1)
		if q.Upstream {
			s.add(aaaaUpstream, 1)
		}
	}
	if q.Latency >= slowFrom {
		s.add(slow, 1)
	}
	if q.Stream {
		s.add(stream, 1)
	}
	if q.Truncated {
		s.add(truncated, 1)
	}
	if q.Truncated && q.Capped {
		s.add(capped, 1)
	}
	s.n[rareCounters+min(bits.Len64(uint64(max(q.Latency, 0))>>latencyShift), LatencyBuckets-1)]++
}

// empty reports whether there were no queries.
func (s *slot) empty() bool {
	some := s.n[place(noError)] | s.n[place(nxDomain)] | s.n[place(servFail)] | s.n[place(otherResult)]
	for r := range int(numReasons) {
		some |= s.n[place(limited+r)]
	}
	return some == 0
}

// read returns the counters and the histogram, and sets them to zero.
func (s *slot) read() (n counters, latency [LatencyBuckets]uint32) {
	for i := range n {
		n[i] = uint64(s.n[place(i)])
	}
	copy(latency[:], s.n[rareCounters:])
	clear(s.n[:])
	return n, latency
}

// resultOf returns the counter of q's result.
func resultOf(q *Query) int {
	switch {
	case q.NoReply:
		return otherResult
	case q.Rcode == wire.NoError:
		return noError
	case q.Rcode == wire.NXDomain:
		return nxDomain
	case q.Rcode == wire.ServFail:
		return servFail
	}
	return otherResult
}

// sourceOf returns the counter of what answered q: hits, upstream or shed.
func sourceOf(q *Query) int {
	switch {
	case q.Shed:
		return shed
	case q.Upstream:
		return upstream
	}
	return hits
}

// stripe has the counters of some readers.
type stripe struct {
	mu sync.Mutex
	// index is a hash table with linear probing of the taken slots, by number plus 1; 0 is
	// empty. At most half of it is used.
	index []uint16
	slots []slot // by number
	// sampler chooses queries for the tables of names, and samples has them until they are added.
	sampler sampler
	samples sampleBuffer
	other   slot
	// refused is a linear-counting bitmap (Whang et al. 1990) of the addresses in other.
	refused [refusedBits / 64]uint64

	_ [64]byte // keeps the next stripe's lock out of this one's cache line
}

// refusedBits is enough to tell some 40,000 addresses apart.
const refusedBits = 8192

// find returns the slot of the address, nil if it has none. h is its hash.
func (s *stripe) find(key *addrKey, h uint64) *slot {
	mask := uint64(len(s.index) - 1)
	for i := h; ; i++ {
		n := s.index[i&mask]
		if n == 0 {
			return nil
		}
		if sl := &s.slots[n-1]; sl.key == *key {
			return sl
		}
	}
}

// findOrOther returns the slot of the address, or other, in which it is recorded then.
func (s *stripe) findOrOther(key *addrKey, h uint64) *slot {
	if sl := s.find(key, h); sl != nil {
		return sl
	}
	bit := h >> 32 % refusedBits
	s.refused[bit/64] |= 1 << (bit % 64)
	return &s.other
}

// take assigns the slot number n to c, whose address has the hash h.
func (s *stripe) take(n uint16, c *client, h uint64) {
	if add := int(n) + 1 - len(s.slots); add > 0 {
		s.slots = append(s.slots, make([]slot, add)...)
	}
	s.slots[n] = slot{key: c.key, taken: true, identity: c.identity}
	s.link(n, h)
}

// link puts the slot number n into the index.
func (s *stripe) link(n uint16, h uint64) {
	mask := uint64(len(s.index) - 1)
	for s.index[h&mask] != 0 {
		h++
	}
	s.index[h&mask] = n + 1
}

// drop frees the slot number n. hash returns the hash of an address.
func (s *stripe) drop(n uint16, hash func(*addrKey) uint64) {
	s.slots[n] = slot{}
	clear(s.index)
	for i := range s.slots {
		if s.slots[i].taken {
			s.link(uint16(i), hash(&s.slots[i].key))
		}
	}
}

// estimate returns how many addresses have set the bits.
func estimate(set *[refusedBits / 64]uint64) uint64 {
	zero := refusedBits
	for _, word := range set {
		zero -= bits.OnesCount64(word)
	}
	return uint64(math.Round(-refusedBits * math.Log(max(float64(zero), 1)/refusedBits)))
}
