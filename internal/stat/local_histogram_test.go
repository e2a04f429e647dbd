package stat_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/stat"
)

// TestTally: a tally says what a histogram of the same values says.
func TestTally(t *testing.T) {
	tally, h := stat.NewLocalHistogram([]uint64{1000, 2000, 4000}), stat.NewHistogram([]float64{1, 2, 4})
	for _, v := range []uint64{0, 1000, 1500, 4000, 5000} {
		tally.Observe(v)
		h.Observe(float64(v) / 1000)
	}
	if diff := cmp.Diff(h.Read(), tally.Read(1000)); diff != "" {
		t.Errorf("the tally differs from the histogram (-histogram +tally):\n%s", diff)
	}
}
