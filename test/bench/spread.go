package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// spread is what several measurements of one thing say.
type spread struct{ median, least, most float64 }

// spreadOf makes a spread of at least one value.
func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{median: (v[(n-1)/2] + v[n/2]) / 2, least: v[0], most: v[n-1]}
}

// percentile is the least of the ascending values that the part of them, from 0 to
// 1, does not exceed (the nearest rank); 0 of none.
func percentile(sorted []time.Duration, part float64) time.Duration {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	// A product such as 0.29 × 100 is a little less or more than 29.
	rank := int(math.Ceil(part*float64(n)-1e-9)) - 1
	return sorted[min(max(rank, 0), n-1)]
}

// Units.
func mebi(bytes uint64) float64      { return float64(bytes) / (1 << 20) }
func kibi(bytes uint64) float64      { return float64(bytes) / (1 << 10) }
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
