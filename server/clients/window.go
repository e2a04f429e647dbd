package clients

import (
	"time"

	"github.com/nodens-dns/nodens/internal/sketch"
)

// Window is a period up to now over which queries and names are counted.
type Window = sketch.Window

const (
	TenSeconds = sketch.TenSeconds
	Minute     = sketch.Minute
	Hour       = sketch.Hour
	numWindows = sketch.NumWindows
)

// sweepInterval is the shortest half.
const sweepInterval = 5 * time.Second

// window is the state of one window. It consists of a complete half and the current one, so
// that it covers between half of its length and all of it.
type window struct{ previous, current time.Duration } // when the halves began

// marks are an owner's counters at the beginnings of the halves of a window.
type marks struct{ previous, current lowCounters }

// LatencyBuckets is the number of buckets of the latency histograms.
const LatencyBuckets = 20

// latencyShift makes the first bucket's bound 8.2 µs.
const latencyShift = 13

// LatencyBound returns the exclusive upper bound of bucket i: 8.192 µs for the first, and
// twice the one before for each further one. The last bucket has none; its lower bound is
// 2.1 s.
func LatencyBound(i int) time.Duration { return 1 << (latencyShift + i) }

// latencies is a histogram of the last 30 to 60 seconds.
type latencies struct{ previous, current [LatencyBuckets]uint64 }
