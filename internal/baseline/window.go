package baseline

import (
	"sync"
	"time"
)

const (
	// SampleInterval is the time between two samples of a [Window].
	SampleInterval = 30 * time.Second
	// windowSamples is the number of samples that a Window keeps: 5 minutes.
	windowSamples = 10
)

// Sample is what an agent has measured by one moment: the statistics, and other cumulative counters.
type Sample[C any] struct {
	Statistics
	Counters C
}

// Window keeps samples, so that it knows what happened in the last five minutes. The zero value is ready for use. It is
// safe for concurrent use.
type Window[C any] struct {
	mu      sync.Mutex
	samples []Sample[C] // oldest first, at most windowSamples
}

// Add adds a sample. The owner calls it every [SampleInterval].
func (w *Window[C]) Add(s Sample[C]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == windowSamples {
		copy(w.samples, w.samples[1:])
		w.samples = w.samples[:windowSamples-1]
	}
	w.samples = append(w.samples, s)
}

// Before returns the newest sample that is at least d older than age, else the oldest; the zero Sample without samples.
func (w *Window[C]) Before(age, d time.Duration) (s Sample[C]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, sample := range w.samples {
		if i == 0 || age-sample.Interval >= d {
			s = sample
		}
	}
	return s
}

// Last returns the statistics from the oldest sample until now, which is cumulative, with the peaks between. Without a
// sample it returns now.
func (w *Window[C]) Last(now Statistics) Statistics {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return now
	}
	out := now.Sub(w.samples[0].Statistics)
	for i, earlier := range w.samples {
		later := now
		if i+1 < len(w.samples) {
			later = w.samples[i+1].Statistics
		}
		out.addPeaks(later.Sub(earlier.Statistics))
	}
	return out
}
