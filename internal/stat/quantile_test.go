package stat_test

import (
	"testing"

	"github.com/nodens-dns/nodens/internal/stat"
)

func TestQuantileBucket(t *testing.T) {
	for _, c := range []struct {
		counts []uint64
		p      uint64
		want   int
	}{
		{nil, 50, -1},
		{[]uint64{0, 0}, 50, -1},
		{[]uint64{0, 0, 1}, 0, 2},
		{[]uint64{0, 0, 1}, 100, 2},
		{[]uint64{50, 49, 1}, 50, 0},
		{[]uint64{49, 50, 1}, 50, 1},
		{[]uint64{50, 49, 1}, 99, 1},
		{[]uint64{50, 48, 2}, 99, 2},
		{[]uint64{99, 0, 1}, 99, 0},
		{[]uint64{98, 0, 2}, 99, 2},
	} {
		if got := stat.QuantileBucket(c.counts, c.p); got != c.want {
			t.Errorf("percentile %d of %v: bucket %d, want %d", c.p, c.counts, got, c.want)
		}
	}
}
