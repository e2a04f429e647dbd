// These tests use maxBuckets, which is not exported.

package stat

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHistogram(t *testing.T) {
	h := NewHistogram([]float64{1, 2, 4})
	for _, v := range []float64{0, 1, 1.5, 4, 5} {
		h.Observe(v)
	}
	want := Snapshot{Count: 5, Sum: 11.5, Buckets: map[float64]uint64{1: 2, 2: 3, 4: 4}}
	if diff := cmp.Diff(want, h.Read()); diff != "" {
		t.Errorf("snapshot differs (-want +got):\n%s", diff)
	}
}

func TestBounds(t *testing.T) {
	if len(DurationBuckets) != 16 || DurationBuckets[0] != 0.00025 || DurationBuckets[15] != 8.192 {
		t.Errorf("Seconds = %v, want 16 bounds from 0.00025 to 8.192", DurationBuckets)
	}
	for name, bounds := range map[string][]float64{"Seconds": DurationBuckets, "Bytes": SizeBuckets} {
		if len(bounds) >= maxBuckets {
			t.Errorf("%s has %d bounds, a Histogram has room for %d", name, len(bounds), maxBuckets-1)
		}
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	h := NewHistogram(DurationBuckets)
	if n := testing.AllocsPerRun(100, func() { h.Observe(0.003) }); n != 0 {
		t.Errorf("Observe allocates %v times", n)
	}
}

func TestPlus(t *testing.T) {
	a := Snapshot{Count: 3, Sum: 4, Buckets: map[float64]uint64{1: 1, 2: 2}}
	b := Snapshot{Count: 1, Sum: 0.5, Buckets: map[float64]uint64{1: 1, 2: 1}}
	want := Snapshot{Count: 4, Sum: 4.5, Buckets: map[float64]uint64{1: 2, 2: 3}}
	if diff := cmp.Diff(want, a.Add(b)); diff != "" {
		t.Errorf("sum differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(a, Snapshot{}.Add(a)); diff != "" {
		t.Errorf("sum with nothing differs (-want +got):\n%s", diff)
	}
}
