// Package figures computes and shows the numbers of a report: the spread of a value over rounds,
// percentiles, Markdown tables, and charts as SVG files.
package figures

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Spread is what several measurements of one thing say.
type Spread struct {
	Median, Least, Most float64
	varies              bool
}

// Varies says that a repetition may give another figure: of at least five measurements, those
// between the least and the most differ by more than a tenth from the median. Such a median is
// not published. Fewer measurements say nothing about that.
func (s Spread) Varies() bool { return s.varies }

// varies stands in tables in the place of a median that a repetition may not give again.
const varies = "varies"

// Text returns the median in the format, or "varies" if it is not published.
func (s Spread) Text(format string) string {
	if s.varies {
		return varies
	}
	return fmt.Sprintf(format, s.Median)
}

// tellingRounds is how many measurements show whether they repeat, and maxVariation how far, as a
// part of the median, the inner ones may lie apart.
const (
	tellingRounds = 5
	maxVariation  = 0.2
)

// SpreadOf makes a spread of at least one value.
func SpreadOf(values []float64) Spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	s := Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Least: v[0], Most: v[n-1]}
	s.varies = n >= tellingRounds && v[n-2]-v[1] > maxVariation*math.Abs(s.Median)
	return s
}

// SpreadBy applies f to list; false if the list is empty.
func SpreadBy[T any](list []T, f func(T) float64) (Spread, bool) {
	if len(list) == 0 {
		return Spread{}, false
	}
	values := make([]float64, 0, len(list))
	for _, v := range list {
		values = append(values, f(v))
	}
	return SpreadOf(values), true
}

// SpreadOfRatios returns the spread of f(of[i])/f(to[i]). It returns false if there is no pair.
func SpreadOfRatios[T any](of, to []T, f func(T) float64) (Spread, bool) {
	n := min(len(of), len(to))
	if n == 0 {
		return Spread{}, false
	}
	values := make([]float64, 0, n)
	for i := range n {
		values = append(values, f(of[i])/f(to[i]))
	}
	return SpreadOf(values), true
}

// Percentile is the least of the ascending values that the part of them, from 0 to
// 1, does not exceed (the nearest rank); 0 of none.
func Percentile(sorted []time.Duration, part float64) time.Duration {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	// A product such as 0.29 × 100 is a little less or more than 29.
	rank := int(math.Ceil(part*float64(n)-1e-9)) - 1
	return sorted[min(max(rank, 0), n-1)]
}

// Units.
func Mebi(bytes uint64) float64      { return float64(bytes) / (1 << 20) }
func Kibi(bytes uint64) float64      { return float64(bytes) / (1 << 10) }
func Millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func Percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
