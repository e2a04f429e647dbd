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

// Sample is cumulative; Age is the age of what it was taken from.
type Sample interface{ Age() time.Duration }

// Window keeps samples, so that it knows what happened in the last five minutes. The zero value is ready for use. It is
// safe for concurrent use.
type Window[T Sample] struct {
	mu      sync.Mutex
	samples []T // oldest first, at most windowSamples
}

// Add adds a sample. The owner calls it every [SampleInterval].
func (w *Window[T]) Add(s T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == windowSamples {
		copy(w.samples, w.samples[1:])
		w.samples = w.samples[:windowSamples-1]
	}
	w.samples = append(w.samples, s)
}

// Before returns the newest sample that is at least d older than age, else the oldest; the zero T without samples.
func (w *Window[T]) Before(age, d time.Duration) (s T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, sample := range w.samples {
		if i == 0 || age-sample.Age() >= d {
			s = sample
		}
	}
	return s
}

// Since returns the statistics from [Window.Before] until now, which is cumulative. It sets no peaks.
func Since(w *Window[Statistics], now Statistics, d time.Duration) Statistics {
	return now.Sub(w.Before(now.Interval, d))
}

// Last returns the statistics from the oldest sample until now, which is cumulative, with the peaks between. Without a
// sample it returns now.
func Last(w *Window[Statistics], now Statistics) Statistics {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return now
	}
	out := now.Sub(w.samples[0])
	for i, earlier := range w.samples {
		later := now
		if i+1 < len(w.samples) {
			later = w.samples[i+1]
		}
		out.addPeaks(later.Sub(earlier))
	}
	return out
}
