package app

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/internal/report"
)

// condition is something that keeps the agent from being healthy. `nodens status`, the page and the plugin show it as a problem.
type condition struct {
	// means is what docs/reference/alerts.md says of it, and alert the alert of daemonset/monitoring that fires if it lasts, "" for none.
	means, alert string
	// find returns the problems; "" is none. s lacks only what [agent.judge] sets. It is safe for concurrent use.
	find func(a *agent, s *report.Status) []string
}

// conditions are all conditions, in the order in which problems are shown.
var conditions = [...]condition{
	{"the agent is not ready, for the reason that `/ready` gives", "NodensPodsMissing", func(a *agent, s *report.Status) []string {
		err := a.ready()
		if s.Ready = err == nil; s.Ready {
			return nil
		}
		return []string{"not ready: " + err.Error()}
	}},
	{"the configuration in the files is invalid", "NodensReloadFailed", func(_ *agent, s *report.Status) []string {
		if !isRejected(&s.Config) {
			return nil
		}
		return []string{"the configuration in the files is invalid: " + s.Config.LastRejected.Error}
	}},
	{"the configuration in the files waits for its view of the cluster", "NodensConfigAwaited", func(_ *agent, s *report.Status) []string {
		if s.Config.Awaited == nil || isRejected(&s.Config) {
			return nil
		}
		return []string{"the configuration in the files is not in force: it waits for its view of the cluster since " +
			s.Config.Awaited.Since.Format(time.RFC3339) + "; check why the API server does not answer"}
	}},
	{"health, ready, metrics or pprof are not served at an address", "", func(a *agent, _ *report.Status) []string { return []string{a.http.Problem()} }},
	{"another process also listens at the agent's addresses", "", func(a *agent, _ *report.Status) (list []string) {
		for _, h := range a.otherHolders(portCheckAge) {
			list = append(list, "another process also listens there, and gets a part of the queries: "+describeHolder(&h)+"; "+portRemedy)
		}
		return list
	}},
	{"the node changes hands too often", "", func(a *agent, _ *report.Status) []string {
		n := len(a.recent.list())
		if n < manyHandovers {
			return nil
		}
		return []string{fmt.Sprintf("%d handovers within %v; %s", n, recentSpan, manyHandoversRemedy)}
	}},
	{"all upstreams, or all of some zones, are down", "NodensUpstreamsAllDown", func(_ *agent, s *report.Status) []string {
		switch u := s.Upstreams; {
		case u.Total > 0 && u.Down == u.Total:
			return []string{"all upstreams are down"}
		case len(s.ZonesDown) > 0:
			return []string{"all upstreams of " + firstZones(s.ZonesDown) + " are down"}
		}
		return nil
	}},
	{"there is no sign of life of the API server", "NodensViewStale", func(_ *agent, s *report.Status) []string { return []string{viewProblem(s.View)} }},
	{"a goroutine of the server does not continue", "NodensRestarting", func(a *agent, _ *report.Status) []string {
		if err := a.progress.err(); err != nil {
			return []string{err.Error()}
		}
		return nil
	}},
	{"the log is not read, or not fast enough", "NodensLogLinesDropped", func(a *agent, _ *report.Status) []string {
		return []string{logProblem(a.logQueue.Stats(), time.Now())}
	}},
}

// isRejected reports whether the files hold a configuration that is invalid.
func isRejected(c *report.Config) bool { return c.Rejected && c.LastRejected != nil }

// judge sets Ready, Healthy and Problems from the rest of s.
func (a *agent) judge(s *report.Status) {
	for _, c := range conditions {
		s.Problems = append(s.Problems, slices.DeleteFunc(c.find(a, s), func(text string) bool { return text == "" })...)
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
