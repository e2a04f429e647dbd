// Inside the package: the tests use the estimator of round-trip times.

package upstream

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestPercentile compares the estimate with the samples, for several distributions and
// after a change.
func TestPercentile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	shapes := []struct {
		name string
		draw func() time.Duration
	}{
		{"even", func() time.Duration { return time.Millisecond + time.Duration(random.Int64N(int64(time.Millisecond))) }},
		{"exponential", func() time.Duration { return time.Duration(random.ExpFloat64() * float64(5*time.Millisecond)) }},
		{"one name in five is slow", func() time.Duration {
			if random.IntN(5) == 0 {
				return 80*time.Millisecond + time.Duration(random.Int64N(int64(40*time.Millisecond)))
			}
			return 2 * time.Millisecond
		}},
	}
	var r rtt
	for _, s := range shapes { // each continues after the previous one
		var seen []time.Duration
		for range 3000 {
			took := s.draw()
			seen = append(seen, took)
			r.observe(took, false, 1)
		}
		slices.Sort(seen)
		got, known := r.percentile95()
		low, high := seen[len(seen)*85/100], seen[len(seen)*99/100]*3/2
		if !known || got < low || got > high {
			t.Errorf("%s: the 95th percentile is put at %v (known: %t), want between %v and %v", s.name, got, known, low, high)
		}
	}
}

func TestFewSamples(t *testing.T) {
	var r rtt
	r.observeSlow() // no effect without samples
	r.observeAtLeast(time.Second)
	if tail, known := r.percentile95(); tail != 0 || known || r.srtt.Load() != 0 {
		t.Errorf("of nothing the 95th percentile is %v, known: %t", tail, known)
	}
	for i := range minSamples {
		if _, known := r.percentile95(); known {
			t.Fatalf("%d times are taken for enough", i)
		}
		r.observe(2*time.Millisecond, false, int64(i+1))
	}
	if tail, known := r.percentile95(); !known || tail < 2*time.Millisecond || tail > 4*time.Millisecond {
		t.Errorf("the 95th percentile of equal times is %v, known: %t", tail, known)
	}
	if got := time.Duration(r.srtt.Load()); got != 2*time.Millisecond {
		t.Errorf("equal times are smoothed to %v", got)
	}
	r.observeAtLeast(time.Millisecond) // no effect below the estimate
	if got := time.Duration(r.srtt.Load()); got != 2*time.Millisecond {
		t.Errorf("after a reply that took at least half of it the time is %v", got)
	}
	r.observeAtLeast(time.Second)
	if got := time.Duration(r.srtt.Load()); got < 100*time.Millisecond {
		t.Errorf("after one that took at least a second the time is %v", got)
	}
}

// TestSlowReplyIsCountedOnce: a late reply that observeSlow has counted changes the
// estimate once.
func TestSlowReplyIsCountedOnce(t *testing.T) {
	var once, twice rtt
	for _, r := range []*rtt{&once, &twice} {
		for range minSamples {
			r.observe(time.Millisecond, false, 1)
		}
		r.observeSlow()
	}
	once.observe(time.Second, true, 1)
	twice.observe(time.Second, false, 1)
	a, _ := once.percentile95()
	b, _ := twice.percentile95()
	if a >= b {
		t.Errorf("counted before: %v; not counted: %v", a, b)
	}
}

func TestDelays(t *testing.T) {
	for _, tt := range []struct {
		tail  time.Duration
		known bool
		read  time.Duration
		want  delays
	}{
		{0, false, 2 * time.Second, delays{25 * time.Millisecond, 100 * time.Millisecond}},
		{time.Millisecond, true, 2 * time.Second, delays{5 * time.Millisecond, 20 * time.Millisecond}},
		{30 * time.Millisecond, true, 2 * time.Second, delays{30 * time.Millisecond, 120 * time.Millisecond}},
		{time.Second, true, 2 * time.Second, delays{250 * time.Millisecond, time.Second}},
		{time.Hour, true, 2 * time.Second, delays{250 * time.Millisecond, time.Second}},
		{time.Second, true, time.Nanosecond, delays{time.Millisecond, time.Millisecond}},
	} {
		if got := delaysFor(tt.tail, tt.known, tt.read); got != tt.want {
			t.Errorf("tail %v (known: %t), read_timeout %v: %v, want %v", tt.tail, tt.known, tt.read, got, tt.want)
		}
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	var r rtt
	if n := testing.AllocsPerRun(100, func() { r.observe(time.Millisecond, false, 1); r.observeSlow() }); n != 0 {
		t.Errorf("a sample allocates %v times", n)
	}
}
