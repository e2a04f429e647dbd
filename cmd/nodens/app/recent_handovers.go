package app

import (
	"slices"
	"sync"
	"time"
)

const (
	// recentSpan is the time for which a handover is recent, and manyHandovers how many recent ones are a problem: a
	// rollout and its undoing are two.
	recentSpan    = time.Hour
	manyHandovers = 3
	// maxRecent bounds the recent handovers that agents tell each other.
	maxRecent = 16
	// manyHandoversRemedy is what the operator can do.
	manyHandoversRemedy = "check whether two DaemonSets, or a DaemonSet and a process that was left behind, have the same --handover-dir; each agent that is restarted takes the node back"
)

// recentHandovers are the handovers of the last hour on this node, also of earlier agents: each agent tells its
// successor. It is safe for concurrent use.
type recentHandovers struct {
	mu    sync.Mutex
	times []time.Time // sorted
}

// add adds handovers. Times in the future, by a clock that was set, count as now.
func (x *recentHandovers) add(times ...time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, t := range times {
		if t.After(now) {
			t = now
		}
		x.times = append(x.times, t)
	}
	slices.SortFunc(x.times, time.Time.Compare)
	x.times = x.times[max(0, len(x.times)-maxRecent):]
}

// list returns the recent handovers.
func (x *recentHandovers) list() []time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.times = slices.DeleteFunc(x.times, func(t time.Time) bool { return time.Since(t) > recentSpan })
	return slices.Clone(x.times)
}

// warnOfHandovers logs that the node changes hands too often.
func (a *agent) warnOfHandovers() {
	if n := len(a.recent.list()); n >= manyHandovers {
		a.log.Warn("the node changes hands too often", "handovers", n, "span", recentSpan, "fix", manyHandoversRemedy)
	}
}
