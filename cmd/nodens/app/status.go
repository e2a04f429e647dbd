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
		Header: a.header(), Version: a.opts.Build.Version, Started: a.created.UTC(), Problems: []report.Problem{},
		Config: report.Config{
			Path: g.cfg.Path, Hash: g.cfg.Hash, Loaded: g.loaded.UTC(),
			Rejected: a.reloadState.refused.Load(), LastRejected: a.times.lastRejected.Load(),
			Awaited: a.awaited.shown.Load(),
		},
		Handover: a.handoverReport(), View: viewReport(g), Rates: a.rates(), Upstreams: countUpstreams(g), ZonesDown: zonesDown(g), Faults: a.faults.faults(),
		FailOpen: a.failOpenReport(), Restored: a.restoredReport(), Limits: a.limits(g), FairShares: a.fairShares(g), Bypass: a.bypassReport(),
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
