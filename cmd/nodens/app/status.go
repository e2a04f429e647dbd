package app

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/upstream"
)

// statusTimes are what /status shows and nothing else needs. They are safe for concurrent use.
type statusTimes struct {
	servingSince atomic.Pointer[time.Time]
	lastHandover atomic.Pointer[report.HandoverEvent]
	lastRejected atomic.Pointer[report.Rejection]
}

// The events of [report.HandoverEvent].
const (
	eventTookOver = "took over"
	eventResumed  = "resumed"
)

// startedServing records that the agent serves from now on.
func (s *statusTimes) startedServing() {
	now := time.Now().UTC()
	s.servingSince.Store(&now)
}

// recordHandover records a hand-over.
func (s *statusTimes) recordHandover(event string) {
	s.lastHandover.Store(&report.HandoverEvent{Time: time.Now().UTC(), Event: event})
}

// newInstance returns a name for this start of an agent.
func newInstance() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// header returns the beginning of each reply.
func (a *agent) header() report.Header {
	return report.Header{SchemaVersion: report.SchemaVersion, Node: a.opts.NodeName, Instance: a.instance}
}

// oldestView is the age at which a view counts as a problem: the API server sends an event after 75 s
// at most.
const oldestView = 5 * time.Minute

func (a *agent) showStatus(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.status()) }

// status returns what /status shows. It is safe for concurrent use.
func (a *agent) status() *report.Status {
	g := a.current.Load() // not nil, because the admin socket opens later
	s := &report.Status{
		Header: a.header(), Version: a.opts.Build.Version, Started: a.created.UTC(), Problems: []string{},
		Config: report.Config{
			Path: g.cfg.Path, Hash: g.cfg.Hash, Loaded: g.loaded.UTC(),
			Rejected: a.reloadState.refused.Load(), LastRejected: a.times.lastRejected.Load(),
			Awaited: a.awaited.shown.Load(),
		},
		Handover: a.handoverReport(), View: viewReport(g), Rates: a.rates(), Upstreams: countUpstreams(g), ZonesDown: zonesDown(g), Faults: a.faults.faults(),
		FailOpen: a.failOpenReport(), Limits: a.limits(g), FairShares: a.fairShares(g),
	}
	if t := a.times.servingSince.Load(); t != nil {
		s.ServingSince = *t
	}
	if a.kernelPath.available() {
		s.KernelPath.Active = a.kernelPath.active.Load()
		s.KernelPath.Answering, s.KernelPath.Watched = a.kernelPath.program.Links()
	}
	s.ServedBy = a.servedBy(s)
	a.judge(s)
	return s
}

// judge sets Ready, Healthy and Problems from the rest of s.
func (a *agent) judge(s *report.Status) {
	problem := func(format string, args ...any) { s.Problems = append(s.Problems, fmt.Sprintf(format, args...)) }
	if err := a.ready(); err != nil {
		problem("not ready: %v", err)
	}
	s.Ready = len(s.Problems) == 0
	if text := configProblem(&s.Config); text != "" {
		problem("%s", text)
	}
	if text := a.http.Problem(); text != "" {
		problem("%s", text)
	}
	for _, h := range a.otherHolders(portCheckAge) {
		problem("another process also listens there, and gets a part of the queries: %s; %s", describeHolder(&h), portRemedy)
	}
	if n := len(a.recent.list()); n >= manyHandovers {
		problem("%d handovers within %v; %s", n, recentSpan, manyHandoversRemedy)
	}
	if text := upstreamProblem(s); text != "" {
		problem("%s", text)
	}
	if text := viewProblem(s.View); text != "" {
		problem("%s", text)
	}
	if err := a.progress.err(); err != nil {
		problem("%v", err)
	}
	if text := logProblem(a.logQueue.Stats(), time.Now()); text != "" {
		problem("%s", text)
	}
	s.Healthy = len(s.Problems) == 0
}

// configProblem says what is wrong with the configuration in the files, "" for nothing.
func configProblem(c *report.Config) string {
	if c.Rejected && c.LastRejected != nil {
		return "the configuration in the files is invalid: " + c.LastRejected.Error
	}
	if w := c.Awaited; w != nil {
		return "the configuration in the files is not in force: it waits for its view of the cluster since " + w.Since.Format(time.RFC3339) + "; check why the API server does not answer"
	}
	return ""
}

// upstreamProblem says which upstreams are down, "" for none.
func upstreamProblem(s *report.Status) string {
	switch u := s.Upstreams; {
	case u.Total > 0 && u.Down == u.Total:
		return "all upstreams are down"
	case len(s.ZonesDown) > 0:
		return fmt.Sprintf("all upstreams of %s are down", firstZones(s.ZonesDown))
	default:
		return ""
	}
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

// handoverReport returns the last hand-over, with the reason of a return.
func (a *agent) handoverReport() report.Handover {
	h := report.Handover{Comparing: a.comparing.Load(), Last: a.times.lastHandover.Load()}
	if h.Last == nil || h.Last.Event != eventResumed {
		return h
	}
	if host := a.handoverServer.Load(); host != nil {
		last := *h.Last
		last.Reason, _ = host.TakenBack()
		h.Last = &last
	}
	return h
}

// firstZones returns the first of the zones, and how many others there are.
func firstZones(zones []string) string {
	const few = 3
	text := strings.Join(zones[:min(few, len(zones))], ", ")
	if n := len(zones) - few; n > 0 {
		text += fmt.Sprintf(" and %d more zones", n)
	}
	return text
}

// countUpstreams counts the servers of all forward directives, each address once.
func countUpstreams(g *generation) (n report.Counts) {
	for _, to := range g.servers() {
		n.Total++
		switch {
		case to.Down:
			n.Down++
		case to.Suspected:
			n.Suspect++
		}
	}
	return n
}

// zonesDown returns the zones of the forward directives whose servers are all down. A directive without a
// known server is not one of them.
func zonesDown(g *generation) []string {
	zones := []string{}
	for f := range g.forwards() {
		servers := f.pool.Stats().Servers
		if len(servers) > 0 && !slices.ContainsFunc(servers, func(s upstream.Server) bool { return !s.Down }) {
			zones = append(zones, forwardedZones(f)...)
		}
	}
	return zones[:min(len(zones), maxShownForwards)]
}

// forwardedZones returns the zones that f is for.
func forwardedZones(f forward) (zones []string) {
	if f.From != wire.Root {
		return []string{f.From.String()}
	}
	for _, z := range f.block.Zones {
		zones = append(zones, z.String())
	}
	return zones
}
