package app

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/internal/report"
)

// condition is something that keeps the agent from being healthy. `nodens status`, the page and the plugin show it as a [report.Problem].
type condition struct {
	code, severity string // of the problem
	// means is what docs/reference/alerts.md says of it, and alert the alert of daemonset/monitoring that fires if it lasts, "" for
	// none. remedy is the problem's, unless find returns one.
	means, alert, remedy string
	// find returns the problems; one without a text is none. s lacks only what [agent.judge] sets. It is safe for concurrent use.
	find func(a *agent, s *report.Status) []report.Problem
}

const critical, warning = "critical", "warning"

// conditions are all conditions, in the order in which problems are shown.
var conditions = [...]condition{
	{
		"not-ready", warning, "the agent is not ready, for the reason that `/ready` gives", "NodensPodsMissing", "resolve that reason, or wait if the agent has just started",
		func(a *agent, s *report.Status) []report.Problem {
			err := a.ready()
			if s.Ready = err == nil; s.Ready {
				return nil
			}
			return problem("not ready: " + err.Error())
		},
	},
	{
		"config-invalid", warning, "the configuration in the files is invalid", "NodensReloadFailed", "correct the files; `nodens check` names each fault",
		func(_ *agent, s *report.Status) []report.Problem {
			if !isRejected(&s.Config) {
				return nil
			}
			return problem("the configuration in the files is invalid: " + s.Config.LastRejected.Error)
		},
	},
	{
		"config-awaited", warning, "the configuration in the files waits for its view of the cluster", "NodensConfigAwaited", "check why the API server does not answer",
		func(_ *agent, s *report.Status) []report.Problem {
			if s.Config.Awaited == nil || isRejected(&s.Config) {
				return nil
			}
			return problem("the configuration in the files is not in force: it waits for its view of the cluster since " +
				s.Config.Awaited.Since.Format(time.RFC3339))
		},
	},
	{
		"http-not-served", warning, "health, ready, metrics or pprof are not served at an address", "", "end the process that listens there, or choose other addresses",
		func(a *agent, _ *report.Status) []report.Problem { return problem(a.http.Problem()) },
	},
	{
		"port-shared", warning, "another process also listens at the agent's addresses", "", portRemedy,
		func(a *agent, _ *report.Status) (list []report.Problem) {
			for _, h := range a.otherHolders(portCheckAge) {
				list = append(list, problem("another process also listens there, and gets a part of the queries: "+describeHolder(&h))...)
			}
			return list
		},
	},
	{
		"handovers-frequent", warning, "the node changes hands too often", "", manyHandoversRemedy,
		func(a *agent, _ *report.Status) []report.Problem {
			n := len(a.recent.list())
			if n < manyHandovers {
				return nil
			}
			return problem(fmt.Sprintf("%d handovers within %v", n, recentSpan))
		},
	},
	{
		"host-lookups", warning, "the node's resolv.conf is not what --host-resolver asks for", "", "`nodens host status` says why; see docs/how-to/host-look-ups.md",
		func(a *agent, _ *report.Status) []report.Problem {
			return problem(strings.Join(a.host.problems(), "; "))
		},
	},
	{
		"upstreams-down", critical, "all upstreams, or all of some zones, are down", "NodensUpstreamsAllDown", "check the servers and the network to them; `nodens top --by upstream` shows their errors",
		func(_ *agent, s *report.Status) []report.Problem {
			switch u := s.Upstreams; {
			case u.Total > 0 && u.Down == u.Total:
				return problem("all upstreams are down")
			case len(s.ZonesDown) > 0:
				return problem("all upstreams of " + firstZones(s.ZonesDown) + " are down")
			}
			return nil
		},
	},
	{
		"view-stale", warning, "there is no sign of life of the API server", "NodensViewStale", "check the API server and the network to it",
		func(_ *agent, s *report.Status) []report.Problem { return viewProblem(s.View) },
	},
	{
		"dns-tunnel", warning, "a client may send data in the names of its queries", "NodensTunnelSuspected", "see which names with `nodens tail`; add a domain that is wanted to `except` of the directive tunnel",
		func(a *agent, _ *report.Status) []report.Problem { return tunnelProblems(a.current.Load()) },
	},
	{
		"stuck", warning, "a goroutine of the server does not continue", "NodensRestarting", "restart the agent, unless the liveness probe does",
		func(a *agent, _ *report.Status) []report.Problem {
			if err := a.progress.err(); err != nil {
				return problem(err.Error())
			}
			return nil
		},
	},
	{
		"log-unread", warning, "the log is not read, or not fast enough", "NodensLogLinesDropped", "check the container runtime, or what else reads standard error",
		func(a *agent, _ *report.Status) []report.Problem {
			return problem(logProblem(a.logQueue.Stats(), time.Now()))
		},
	},
}

// problem is the result of a condition that finds one problem with this text.
func problem(text string) []report.Problem { return []report.Problem{{Text: text}} }

// isRejected reports whether the files hold a configuration that is invalid.
func isRejected(c *report.Config) bool { return c.Rejected && c.LastRejected != nil }

// judge sets Ready, Healthy and Problems from the rest of s.
func (a *agent) judge(s *report.Status) {
	for _, c := range conditions {
		for _, p := range c.find(a, s) {
			if p.Text != "" {
				p.Code, p.Severity, p.Remedy = c.code, c.severity, cmp.Or(p.Remedy, c.remedy)
				s.Problems = append(s.Problems, p)
			}
		}
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
