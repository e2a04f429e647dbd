package upstream

import (
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Buckets is the number of bounds of a [Histogram].
const Buckets = 16

// firstBucket is the least bound; each further one is twice the one before. The
// dashboards made for CoreDNS expect these 16, up to 8.192 s.
const firstBucket = 250 * time.Microsecond

// Bucket is the upper bound of the i-th bucket, the least is the 0th. It is
// inclusive, as Prometheus' `le` is.
func Bucket(i int) time.Duration { return firstBucket << i }

// Stats is a snapshot of a Pool's counters. All only grow, but Down. Counters
// read while queries are under way need not add up to the last one.
type Stats struct {
	Servers []Server
	// HealthcheckBroken is how often all servers were down when one was needed.
	HealthcheckBroken uint64
	// MaxConcurrentRejects is how often Exchange was [ErrTooMany].
	MaxConcurrentRejects uint64
}

// Server is what is counted per upstream.
type Server struct {
	To   netip.AddrPort
	Down bool
	// Durations holds one histogram per rcode that was seen, in the rcodes' order.
	Durations           []Histogram
	HealthcheckFailures uint64
	UDP, TCP            Reuse
	// Strays are the messages dropped because their ID or question was another
	// one. What came from another address the kernel has dropped, uncounted.
	Strays uint64
}

// Reuse is how often a query found a connection open, and how often not.
type Reuse struct {
	Hits, Misses uint64
}

// Histogram is how long the exchanges took that ended with Rcode.
type Histogram struct {
	Rcode wire.Rcode
	Count uint64
	Sum   time.Duration
	// Cumulative[i] is the number of exchanges that took at most Bucket(i).
	Cumulative [Buckets]uint64
}

// Stats takes a snapshot. The caller owns it.
func (p *Pool) Stats() Stats {
	out := Stats{HealthcheckBroken: p.broken.Load(), MaxConcurrentRejects: p.rejected.Load()}
	for _, s := range p.servers {
		v := Server{
			To:                  s.to,
			Down:                p.down(s),
			Durations:           s.durations.snapshot(),
			HealthcheckFailures: s.failures.Load(),
			Strays:              s.strays.Load(),
		}
		v.UDP.Hits, v.UDP.Misses = s.udp.reuse()
		v.TCP.Hits, v.TCP.Misses = s.tcp.reuse()
		out.Servers = append(out.Servers, v)
	}
	return out
}

// durations is a histogram for each rcode of the header's four bits; extended
// ones have become SERVFAIL in wire. The last bucket is +Inf.
type durations [16]struct {
	buckets [Buckets + 1]atomic.Uint64
	sum     atomic.Int64
}

func (d *durations) observe(c wire.Rcode, took time.Duration) {
	h := &d[int(c)%len(d)]
	h.buckets[bucketOf(took)].Add(1)
	h.sum.Add(int64(took))
}

// bucketOf is the least i with took <= Bucket(i), or Buckets.
func bucketOf(took time.Duration) int {
	if took <= firstBucket {
		return 0
	}
	return min(bits.Len64(uint64((took-1)/firstBucket)), Buckets)
}

func (d *durations) snapshot() []Histogram {
	var out []Histogram
	for rcode := range d {
		h := Histogram{Rcode: wire.Rcode(rcode), Sum: time.Duration(d[rcode].sum.Load())}
		for i := range d[rcode].buckets {
			h.Count += d[rcode].buckets[i].Load()
			if i < Buckets {
				h.Cumulative[i] = h.Count
			}
		}
		if h.Count > 0 {
			out = append(out, h)
		}
	}
	return out
}
