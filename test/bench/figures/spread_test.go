package figures

import (
	"github.com/google/go-cmp/cmp"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"one", []float64{3}, Spread{3, 3, 3, false}},
		{"odd, one far off", []float64{9, 1, 2}, Spread{2, 1, 9, false}},
		{"even", []float64{4, 1, 3, 2}, Spread{2.5, 1, 4, false}},
		{"five, two of them far off", []float64{900, 1, 100, 109, 91}, Spread{100, 1, 900, false}},
		{"five that vary", []float64{100, 112, 90, 91, 113}, Spread{100, 90, 113, true}},
		{"five times nothing", make([]float64, 5), Spread{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if d := cmp.Diff(test.want, SpreadOf(test.values), cmp.AllowUnexported(Spread{})); d != "" {
				t.Errorf("spread (-want +got):\n%s", d)
			}
		})
	}
}

func TestPercentile(t *testing.T) {
	var values []time.Duration
	if got := Percentile(values, 0.5); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for i := range 1000 {
		values = append(values, time.Duration(i+1))
	}
	for _, test := range []struct {
		n    int
		part float64
		want time.Duration
	}{
		{1, 0.5, 1}, {1, 0.999, 1}, {2, 0.5, 1}, {2, 0.51, 2}, {3, 0.5, 2}, {100, 0.99, 99}, {100, 0.29, 29},
		{100, 0.999, 100}, {1000, 0.999, 999}, {1000, 0.5, 500}, {1000, 1, 1000}, {1000, 0, 1},
	} {
		if got := Percentile(values[:test.n], test.part); got != test.want {
			t.Errorf("%g of %d: %d, want %d", test.part, test.n, got, test.want)
		}
	}
}
