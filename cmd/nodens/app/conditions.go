package app

import (
	"fmt"
	"time"

	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/internal/report"
)

// condition is something that keeps the agent from being healthy. `nodens status`, the page and the plugin show it as a problem.
type condition struct {
	// means is what docs/reference/alerts.md says of it, and alert the alert of daemonset/monitoring that fires if it lasts, "" for none.
	means, alert string
	// find calls found for each problem, with s as complete as it is before [agent.judge]. It is safe for concurrent use.
	find func(a *agent, s *report.Status, found foundFunc)
}

// foundFunc takes the text of a problem.
type foundFunc = func(format string, args ...any)

// conditions are all conditions, in the order in which problems are shown.
var conditions = [...]condition{
	{"the agent is not ready, for the reason that `/ready` gives", "NodensPodsMissing", func(a *agent, s *report.Status, found foundFunc) {
		err := a.ready()
		if s.Ready = err == nil; err != nil {
			found("not ready: %v", err)
		}
	}},
	{"the configuration in the files is invalid", "NodensReloadFailed", func(_ *agent, s *report.Status, found foundFunc) {
		if c := &s.Config; c.Rejected && c.LastRejected != nil {
			found("the configuration in the files is invalid: %s", c.LastRejected.Error)
		}
	}},
	{"the configuration in the files waits for its view of the cluster", "NodensConfigAwaited", func(_ *agent, s *report.Status, found foundFunc) {
		if w := s.Config.Awaited; w != nil && (!s.Config.Rejected || s.Config.LastRejected == nil) {
			found("the configuration in the files is not in force: it waits for its view of the cluster since %s; check why the API server does not answer", w.Since.Format(time.RFC3339))
		}
	}},
	{"health, ready, metrics or pprof are not served at an address", "", func(a *agent, _ *report.Status, found foundFunc) {
		if text := a.http.Problem(); text != "" {
			found("%s", text)
		}
	}},
	{"another process also listens at the agent's addresses", "", func(a *agent, _ *report.Status, found foundFunc) {
		for _, h := range a.otherHolders(portCheckAge) {
			found("another process also listens there, and gets a part of the queries: %s; %s", describeHolder(&h), portRemedy)
		}
	}},
	{"the node changes hands too often", "", func(a *agent, _ *report.Status, found foundFunc) {
		if n := len(a.recent.list()); n >= manyHandovers {
			found("%d handovers within %v; %s", n, recentSpan, manyHandoversRemedy)
		}
	}},
	{"all upstreams, or all of some zones, are down", "NodensUpstreamsAllDown", func(_ *agent, s *report.Status, found foundFunc) {
		switch u := s.Upstreams; {
		case u.Total > 0 && u.Down == u.Total:
			found("all upstreams are down")
		case len(s.ZonesDown) > 0:
			found("all upstreams of %s are down", firstZones(s.ZonesDown))
		}
	}},
	{"there is no sign of life of the API server", "NodensViewStale", func(_ *agent, s *report.Status, found foundFunc) {
		if text := viewProblem(s.View); text != "" {
			found("%s", text)
		}
	}},
	{"a goroutine of the server does not continue", "NodensRestarting", func(a *agent, _ *report.Status, found foundFunc) {
		if err := a.progress.err(); err != nil {
			found("%v", err)
		}
	}},
	{"the log is not read, or not fast enough", "NodensLogLinesDropped", func(a *agent, _ *report.Status, found foundFunc) {
		if text := logProblem(a.logQueue.Stats(), time.Now()); text != "" {
			found("%s", text)
		}
	}},
}

// judge sets Ready, Healthy and Problems from the rest of s.
func (a *agent) judge(s *report.Status) {
	for _, c := range conditions {
		c.find(a, s, func(format string, args ...any) { s.Problems = append(s.Problems, fmt.Sprintf(format, args...)) })
	}
	s.Healthy = len(s.Problems) == 0
}

const (
	// longestWrite is the time after which a write of the log counts as stalled. A write takes microseconds.
	longestWrite = 2 * time.Second
	// dropsShown is how long dropped lines of the log are a problem.
	dropsShown = 10 * time.Minute
)

// logProblem says what is wrong with the log at now; "" if nothing is.
func logProblem(q logqueue.Stats, now time.Time) string {
	if !q.WritingSince.IsZero() && now.Sub(q.WritingSince) > longestWrite {
		return fmt.Sprintf("nobody has read the log (standard error) for %v; %d lines dropped so far", now.Sub(q.WritingSince).Round(time.Second), q.Dropped)
	}
	if q.Dropped > 0 && now.Sub(q.DroppedAt) < dropsShown {
		return fmt.Sprintf("%d lines of the log dropped since the start, the last one %v ago: it is not read fast enough", q.Dropped, now.Sub(q.DroppedAt).Round(time.Second))
	}
	return ""
}
