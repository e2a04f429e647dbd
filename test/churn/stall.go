package main

import (
	"context"
	"sync/atomic"
	"time"
)

// stallMonitor notices when the machine is too busy for this process, which the upstreams are
// part of. A query whose upstream does not get the processor for seconds is answered SERVFAIL,
// and the agent is not to blame.
type stallMonitor struct {
	last   atomic.Int64 // when the last stall ended, in nanoseconds since the epoch; 0: never
	number atomic.Int64
}

const (
	stallLook = 20 * time.Millisecond
	// longestPause is how late a look may be. Upstreams have two seconds for an answer, for
	// which several goroutines run after each other.
	longestPause = 500 * time.Millisecond
	// stallEffect is how long SERVFAIL may come after a stall: five seconds until the agent
	// gives up, and five for which it keeps the answer.
	stallEffect = 10 * time.Second
)

// watch runs until ctx ends.
func (m *stallMonitor) watch(ctx context.Context) {
	for {
		began := time.Now()
		if pause(ctx, stallLook) != nil {
			return
		}
		if time.Since(began) > stallLook+longestPause {
			m.last.Store(time.Now().UnixNano())
			m.number.Add(1)
		}
	}
}

// excuses reports whether a stall may be the reason for a SERVFAIL after the time.
func (m *stallMonitor) excuses(since time.Time) bool {
	return m.last.Load() > since.Add(-stallEffect).UnixNano()
}
