package harness

import (
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/bench/figures"
)

// TestVerdict: a value that varies around its limit is open and not met, one that varies on one side of
// it is not open, and the median of neither is published.
func TestVerdict(t *testing.T) {
	tests := []struct {
		name    string
		values  []float64
		verdict string
		shown   string
	}{
		{"below the limit", []float64{0.9, 0.9, 0.9, 0.9, 0.9}, "met", "0.90"},
		{"above the limit", []float64{1.1, 1.1, 1.1, 1.1, 1.1}, "**missed**", "1.10"},
		{"varies around the limit", []float64{0.5, 0.7, 0.9, 1.1, 1.3}, "open", "varies"},
		{"varies below the limit", []float64{0.2, 0.3, 0.4, 0.5, 0.6}, "met", "varies"},
		{"varies above the limit", []float64{2, 3, 4, 5, 6}, "**missed**", "varies"},
		{"few rounds", []float64{0.5, 0.9, 1.3}, "met", "0.90"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			list := []Target{{What: "x", Limit: 1, Of: []TargetValue{{Find: func() (figures.Spread, bool) { return figures.SpreadOf(test.values), true }}}}}
			table := TargetTable(list, true)
			cells := strings.Split(strings.Split(strings.TrimSpace(table), "\n")[2], "|")
			if got := strings.TrimSpace(cells[3]); got != test.shown {
				t.Errorf("the median is shown as %q, want %q", got, test.shown)
			}
			if got := strings.TrimSpace(cells[6]); got != test.verdict || (got == "met") != list[0].Judge().Met() {
				t.Errorf("the verdict is %q, want %q; met: %t", got, test.verdict, list[0].Judge().Met())
			}
		})
	}
}
