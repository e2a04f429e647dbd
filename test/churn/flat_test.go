package main

// Internal: the command exports nothing.

import (
	"math/rand/v2"
	"testing"
)

// series returns n samples that f makes from their numbers.
func series(n int, f func(i int) float64) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = f(i)
	}
	return s
}

// TestJudge judges made-up series of memory, in MiB, and of descriptors.
func TestJudge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(most float64) float64 { return (2*random.Float64() - 1) * most }
	rising := func(i, steps int) float64 { return 1 - 1/float64(1+i*steps) }
	memory, exact := bound{relative: 0.1, absolute: 4, least: 8}, bound{}
	for _, tt := range []struct {
		name   string
		bound  bound
		series []float64
		flat   bool
	}{
		{"flat with noise", memory, series(40, func(int) float64 { return 50 + noise(5) }), true},
		{"a warm-up", memory, series(40, func(i int) float64 { return 30 + 20*rising(i, 1) + noise(2) }), true},
		{"peaks", memory, series(40, func(i int) float64 { return 50 + float64(i%7/6*100) }), true},
		{"a last sample that is too high", memory, series(40, func(i int) float64 { return 50 + float64(i/39*100) }), true},
		{"less", memory, series(40, func(i int) float64 { return 50 - float64(i) }), true},
		{"a slow leak under noise", memory, series(40, func(i int) float64 { return 50 + float64(i) + noise(5) }), false},
		{"a slower leak in a longer run", memory, series(400, func(i int) float64 { return 50 + 0.1*float64(i) + noise(5) }), false},
		{"a step after the warm-up", memory, series(40, func(i int) float64 { return 50 + float64(i/25)*15 + noise(2) }), false},
		{"too few samples", memory, []float64{50, 60, 70, 80, 90, 100, 110}, true},
		{"few samples, flat", memory, []float64{20, 50, 52, 51, 53, 50, 51, 54}, true},
		{"few samples, a leak", memory, []float64{50, 60, 70, 80, 90, 100, 110, 120}, false},
		{"descriptors", exact, series(40, func(int) float64 { return 30 }), true},
		{"a descriptor that is open at times", exact, series(40, func(i int) float64 { return 30 + float64(i%5/4) }), true},
		{"a descriptor lost in each round", exact, series(40, func(i int) float64 { return 30 + float64(i) }), false},
		{"a descriptor lost once in a while", exact, series(40, func(i int) float64 { return 30 + float64(i/15) }), false},
		{"one sample of descriptors", exact, []float64{30}, true},
		{"a descriptor lost in each of few rounds", exact, []float64{30, 31}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.bound.judge(tt.series); (err == nil) != tt.flat {
				t.Errorf("%v, want flat: %v", err, tt.flat)
			}
		})
	}
}
