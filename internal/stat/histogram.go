// Package stat has the histograms that packages fill and cmd/nodens/app exposes: plain
// numbers, so that only that one package needs the metrics library. Counting takes a few
// atomic additions and no lock.
package stat

import "sync/atomic"

// maxBuckets is the longest list of bounds (20) and a bucket for larger values.
const maxBuckets = 21

// Histogram counts values by upper bounds. [NewHistogram] makes it. It is safe for
// concurrent use.
type Histogram struct {
	bounds  []float64
	buckets [maxBuckets]atomic.Uint64
	sum     atomic.Uint64 // in millionths of the unit
}

// NewHistogram makes a histogram with ascending bounds, of which it uses the first 20. bounds
// must not change afterwards.
func NewHistogram(bounds []float64) *Histogram {
	return &Histogram{bounds: bounds[:min(len(bounds), maxBuckets-1)]}
}

// Observe counts v, which must not be negative.
func (h *Histogram) Observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(uint64(v * 1e6))
}

// Snapshot is the state of a histogram. Values that are counted while it is read may be in
// the sum but not in the buckets.
type Snapshot struct {
	Count uint64
	Sum   float64
	// Buckets maps upper bounds to cumulative counts.
	Buckets map[float64]uint64
}

// Read returns the values counted so far.
func (h *Histogram) Read() Snapshot {
	out := Snapshot{Sum: float64(h.sum.Load()) / 1e6, Buckets: make(map[float64]uint64, len(h.bounds))}
	for i, b := range h.bounds {
		out.Count += h.buckets[i].Load()
		out.Buckets[b] = out.Count
	}
	out.Count += h.buckets[len(h.bounds)].Load()
	return out
}

// Count returns the number of values counted so far. It does not allocate.
func (h *Histogram) Count() (n uint64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// Add returns the sum of two snapshots with the same bounds. The zero Snapshot goes with any
// bounds.
func (s Snapshot) Add(t Snapshot) Snapshot {
	sum := Snapshot{Count: s.Count + t.Count, Sum: s.Sum + t.Sum, Buckets: make(map[float64]uint64, len(t.Buckets))}
	for _, part := range []Snapshot{s, t} {
		for bound, n := range part.Buckets {
			sum.Buckets[bound] += n
		}
	}
	return sum
}

// DurationBuckets are the bounds of CoreDNS's duration metrics, in seconds: 250 µs, doubled
// 15 times.
var DurationBuckets = ExponentialBuckets(0.00025, 16)

// SizeBuckets are the bounds of CoreDNS's size metrics, in bytes.
var SizeBuckets = []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}

// ExponentialBuckets returns n bounds: first, and each further one twice the one before.
func ExponentialBuckets(first float64, n int) []float64 {
	b := make([]float64, n)
	for i := range b {
		b[i] = first * float64(int(1)<<i)
	}
	return b
}
