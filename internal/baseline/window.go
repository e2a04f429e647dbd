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

// Window keeps samples of cumulative statistics, so that it knows what happened in the last
// five minutes. The zero value is ready for use. It is safe for concurrent use.
type Window struct {
	mu      sync.Mutex
	samples []Statistics // oldest first, at most windowSamples
}

// Add adds a sample: cumulative statistics, whose Interval is the agent's age. The owner calls
// it every [SampleInterval].
func (w *Window) Add(s Statistics) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == windowSamples {
		copy(w.samples, w.samples[1:])
		w.samples = w.samples[:windowSamples-1]
	}
	w.samples = append(w.samples, s)
}

// Last returns the statistics from the oldest sample until now, which is cumulative, with the
// peaks between. Without a sample it returns now.
func (w *Window) Last(now Statistics) Statistics {
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

// Since returns the statistics of the last time d: from the newest sample that is at least as old until
// now, which is cumulative; from the oldest sample if none is. Without a sample it returns now. It sets
// no peaks.
func (w *Window) Since(now Statistics, d time.Duration) Statistics {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return now
	}
	from := w.samples[0]
	for _, s := range w.samples {
		if now.Interval-s.Interval >= d {
			from = s
		}
	}
	return now.Sub(from)
}
