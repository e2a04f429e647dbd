package main

import (
	"fmt"
	"slices"
)

// bound says how much a series may grow and still count as flat. The zero value allows
// nothing.
type bound struct {
	relative float64 // of the reference
	absolute float64 // added to that
	least    int     // fewer samples are a warm-up, which is not judged
}

// reference returns the median of the second quarter of a series: the first is the warm-up.
// For fewer than four samples it is the first one's.
func reference(series []float64) float64 {
	n := len(series)
	return median(series[n/4 : max(n/2, n/4+1)])
}

// end returns the median of the last quarter of a series.
func end(series []float64) float64 {
	n := len(series)
	return median(series[min(n-1, n-n/4):])
}

// judge returns an error if the series is not flat: if the median of its last quarter exceeds
// the reference by more than the bound. A single sample decides nothing in a series of twelve or
// more. The series is not empty.
func (b bound) judge(series []float64) error {
	if len(series) < b.least {
		return nil
	}
	from, to := reference(series), end(series)
	if limit := from*(1+b.relative) + b.absolute; to > limit {
		return fmt.Errorf("grows from %.6g to %.6g; the limit is %.6g", from, to, limit)
	}
	return nil
}

// median returns the lower median, so that the result is one of the values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
