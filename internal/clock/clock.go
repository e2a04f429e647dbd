// Package clock tells the time of the query path: how long the process has run.
package clock

import "time"

// start is where the clock stands at zero.
var start = time.Now()

// Now is the monotonic time since the process started. It reads one clock, where
// time.Now reads two; setting the wall clock does not move it.
func Now() time.Duration { return time.Since(start) }
