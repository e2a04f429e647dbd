package stat

// LocalHistogram is a [Histogram] of integers without atomic operations. [NewLocalHistogram]
// makes it. It is not safe for concurrent use.
type LocalHistogram struct {
	bounds  []uint64
	buckets []uint64 // one more than bounds
	sum     uint64
}

// NewLocalHistogram makes a histogram with ascending bounds, which must not change afterwards.
func NewLocalHistogram(bounds []uint64) LocalHistogram {
	return LocalHistogram{bounds: bounds, buckets: make([]uint64, len(bounds)+1)}
}

// Observe counts v. It searches the bounds upwards: most values are small.
func (t *LocalHistogram) Observe(v uint64) { t.ObserveMany(v, 1) }

// ObserveMany counts v n times.
func (t *LocalHistogram) ObserveMany(v, n uint64) {
	i := 0
	for i < len(t.bounds) && v > t.bounds[i] {
		i++
	}
	t.buckets[i] += n
	t.sum += v * n
}

// Read returns the values counted so far, divided by perUnit.
func (t *LocalHistogram) Read(perUnit float64) Snapshot {
	out := Snapshot{Sum: float64(t.sum) / perUnit, Buckets: make(map[float64]uint64, len(t.bounds))}
	for i, b := range t.bounds {
		out.Count += t.buckets[i]
		out.Buckets[float64(b)/perUnit] = out.Count
	}
	out.Count += t.buckets[len(t.bounds)]
	return out
}

// AddCounts adds the number of values in each bucket to sum, which has one place more than there are
// bounds. It does not allocate.
func (t *LocalHistogram) AddCounts(sum []uint64) {
	for i, n := range t.buckets {
		sum[i] += n
	}
}
