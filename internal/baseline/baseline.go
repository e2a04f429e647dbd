// Package baseline decides whether an agent that has taken over works worse than the agent
// before it. The running agent measures its last minutes with a [Window], and sends the result
// to its successor. The successor measures itself in the same way, and [Compare] returns what
// has become worse. It tells a fault from noise by the number of queries: with too few of them
// it returns nothing.
package baseline

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
)

// Statistics are what an agent has measured in an interval, and the state of its views at the
// end of it.
type Statistics struct {
	// Interval is the length of the interval.
	Interval time.Duration `json:"interval"`
	// Zones are the zones in any order. [Encode] leaves out the zones with the fewest queries
	// if there are too many; More is set then.
	Zones []Zone `json:"zones,omitempty"`
	More  bool   `json:"more,omitempty"`
	// Views have one entry for each zone name.
	Views []View `json:"views,omitempty"`
}

// Zone has the counters of one zone, summed over the addresses that serve it.
type Zone struct {
	// Name is the zone's name, and Group what tells it from other zones with that name:
	// transport and view, or "". Together they are unique.
	Name  string `json:"name"`
	Group string `json:"group,omitempty"`
	// Queries is the number of queries, and ServFail how many were answered SERVFAIL.
	Queries  uint64 `json:"queries,omitempty"`
	ServFail uint64 `json:"servfail,omitempty"`
	// Lookups is the number of queries answered by the cache or by an upstream, and Hits how
	// many of them the cache answered; both without SERVFAIL.
	Lookups uint64 `json:"lookups,omitempty"`
	Hits    uint64 `json:"hits,omitempty"`
	// Duration counts the times from a query to its reply.
	Duration Histogram `json:"duration"`
	// Peak has the worst values within the interval.
	Peak Peak `json:"peak"`
}

// Peak has the worst values of a zone between two samples of a [Window] with enough queries. A
// successor that is not worse than these is no worse than its predecessor was at times.
type Peak struct {
	// ServFail is the highest share of SERVFAIL, and Misses the highest share of lookups that the
	// cache did not answer.
	ServFail float64 `json:"servfail,omitempty"`
	Misses   float64 `json:"misses,omitempty"`
	// Bucket is the highest bucket of Duration with the 99th percentile.
	Bucket int `json:"bucket,omitempty"`
}

// The minimum numbers of queries and lookups between two samples that count for the [Peak].
const (
	minPeakQueries = 20
	minPeakLookups = 100
)

// raise raises p to the values of z.
func (p Peak) raise(z Zone) Peak {
	if z.Queries >= minPeakQueries {
		p.ServFail = max(p.ServFail, share(z.ServFail, z.Queries))
	}
	if z.Lookups >= minPeakLookups {
		p.Misses = max(p.Misses, share(z.Lookups-z.Hits, z.Lookups))
	}
	if z.Duration.Total() >= minPeakLookups {
		p.Bucket = max(p.Bucket, int(z.Duration.p99()))
	}
	return p
}

// Add returns the sum of two zones with the same identity. Its Peak is z's.
func (z Zone) Add(y Zone) Zone {
	z.Queries, z.ServFail = z.Queries+y.Queries, z.ServFail+y.ServFail
	z.Lookups, z.Hits = z.Lookups+y.Lookups, z.Hits+y.Hits
	for i, n := range y.Duration {
		z.Duration[i] += n
	}
	return z
}

// numBuckets is the number of buckets for the bounds of [stat.DurationBuckets], and one for
// longer times.
const numBuckets = 17

// Histogram counts durations by the bounds of [stat.DurationBuckets]. The counts are not
// cumulative; the last one is for longer times.
type Histogram [numBuckets]uint64

// NewHistogram returns the counts of s, whose bounds are [stat.DurationBuckets].
func NewHistogram(s stat.Snapshot) (h Histogram) {
	var below uint64
	for i, bound := range stat.DurationBuckets {
		n := s.Buckets[bound]
		h[i] = n - min(n, below)
		below = n
	}
	h[numBuckets-1] = s.Count - min(s.Count, below)
	return h
}

// Total returns the number of durations.
func (h Histogram) Total() (n uint64) {
	for _, count := range h {
		n += count
	}
	return n
}

// Quantile returns the upper bound of the bucket with percentile p of the durations, 0 without any. The
// last bucket has no bound: twice the one before stands for it.
func (h Histogram) Quantile(p uint64) time.Duration {
	i := stat.QuantileBucket(h[:], p)
	if i < 0 {
		return 0
	}
	return time.Duration(float64(time.Second) * stat.DurationBuckets[0] * float64(int(1)<<i))
}

// View is the state of a view of the cluster.
type View struct {
	// Zone identifies the view: the first zone that it answers for.
	Zone string `json:"zone"`
	// Objects is the number of Services and namespaces. All of them are in view, whatever the
	// clients ask for.
	Objects int `json:"objects"`
	// Age is the time since the last sign of life of the API server; 0 without one.
	Age time.Duration `json:"age"`
	// Synced says that the view has received its first lists.
	Synced bool `json:"synced"`
}

// Sub returns the statistics of the interval between two cumulative statistics of the same
// agent: before and, later, s. A zone that is not in before counts from zero. A zone whose
// counters have become smaller has been reset, and counts from zero, too.
func (s Statistics) Sub(before Statistics) Statistics {
	out := Statistics{Interval: max(0, s.Interval-before.Interval), More: s.More, Views: s.Views}
	for _, z := range s.Zones {
		if b, ok := before.zone(z); ok {
			z = z.sub(b)
		}
		out.Zones = append(out.Zones, z)
	}
	return out
}

func (z Zone) sub(b Zone) Zone {
	if b.Queries > z.Queries || b.ServFail > z.ServFail || b.Lookups > z.Lookups || b.Hits > z.Hits {
		return z
	}
	out := Zone{
		Name: z.Name, Group: z.Group, Queries: z.Queries - b.Queries, ServFail: z.ServFail - b.ServFail,
		Lookups: z.Lookups - b.Lookups, Hits: z.Hits - b.Hits,
	}
	for i := range out.Duration {
		out.Duration[i] = z.Duration[i] - min(z.Duration[i], b.Duration[i])
	}
	return out
}

// zone returns s's entry of the zone like.
func (s Statistics) zone(like Zone) (Zone, bool) {
	i := slices.IndexFunc(s.Zones, func(z Zone) bool { return z.Name == like.Name && z.Group == like.Group })
	if i < 0 {
		return Zone{}, false
	}
	return s.Zones[i], true
}

// Sort puts the zones with the most queries first.
func (s Statistics) Sort() {
	slices.SortFunc(s.Zones, func(a, b Zone) int {
		return cmp.Or(cmp.Compare(b.Queries, a.Queries), strings.Compare(a.Name, b.Name), strings.Compare(a.Group, b.Group))
	})
}

// addPeaks raises the peaks of s's zones to the values of slice.
func (s Statistics) addPeaks(slice Statistics) {
	parts := make(map[[2]string]Zone, len(slice.Zones))
	for _, z := range slice.Zones {
		parts[[2]string{z.Name, z.Group}] = z
	}
	for i, z := range s.Zones {
		s.Zones[i].Peak = z.Peak.raise(parts[[2]string{z.Name, z.Group}])
	}
}

// hasOther reports whether s has another zone with z's name or below it that t certainly does
// not have.
func (s Statistics) hasOther(t Statistics, z Zone) bool {
	if t.More {
		return false
	}
	for _, other := range s.Zones {
		if _, ok := t.zone(other); !ok && within(other.Name, z.Name) {
			return true
		}
	}
	return false
}
