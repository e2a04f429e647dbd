package app

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/kubernetes"
)

// viewReport returns the sum of g's views, nil if there is none.
func viewReport(g *generation) *report.View {
	var sum *report.View
	known := make(map[*kubernetes.View]bool) // blocks may share one
	for _, p := range g.blocks {
		if p.view == nil || known[p.view] {
			continue
		}
		known[p.view] = true
		if sum == nil {
			sum = &report.View{Synced: true, Objects: make(map[string]int), Gaps: report.Gaps{Unlisted: []string{}, Failing: []string{}}}
		}
		addView(sum, p.view.Stats(), len(p.block.Kubernetes.Manifests) == 0)
	}
	return sum
}

// addView adds a view to sum. watched says that it is filled from an API server.
func addView(sum *report.View, st kubernetes.Stats, watched bool) {
	for kind, n := range objectsByKind(&st) {
		sum.Objects[kind] += int(n)
	}
	sum.Synced = sum.Synced && st.Synced
	sum.Faulty += st.Faulty
	if watched {
		last := st.LastEvent
		if last.IsZero() {
			last, sum.NoEvent = st.Opened, true
		}
		sum.AgeSeconds = max(sum.AgeSeconds, time.Since(last).Seconds())
	}
	if st.Failure.Err != nil {
		sum.Error, sum.Fix = st.Failure.Err.Error(), st.Failure.Fix
	}
	addGaps(&sum.Gaps, &st.Gaps)
}

// viewProblem says what is wrong with the view, "" for nothing.
func viewProblem(v *report.View) []report.Problem {
	refused := v != nil && v.NoEvent && v.Error != "" // and nothing says that it will end
	if v == nil || v.AgeSeconds <= oldestView.Seconds() && !refused {
		return nil
	}
	text := fmt.Sprintf("no sign of life of the API server for %v", time.Duration(v.AgeSeconds)*time.Second)
	if v.NoEvent {
		text += ", since the start"
	}
	if v.Error != "" {
		text += ": " + v.Error
	}
	return []report.Problem{{Text: text, Remedy: v.Fix}}
}

// addGaps adds the gaps of a view to sum.
func addGaps(sum *report.Gaps, g *kubernetes.Gaps) {
	sum.Unlisted = union(sum.Unlisted, g.Unlisted)
	sum.Failing = union(sum.Failing, g.Failing)
	sum.SetBacks += g.SetBacks
	if t := g.LastSetBack.UTC(); g.SetBacks > 0 && (sum.LastSetBack == nil || t.After(*sum.LastSetBack)) {
		sum.LastSetBack = &t
	}
	sum.Relists += g.Relists
	if t := g.LastRelist.UTC(); g.Relists > 0 && (sum.LastRelist == nil || t.After(*sum.LastRelist)) {
		sum.LastRelist = &t
	}
	sum.Silences += g.Silences
	if t := g.LastSilence.UTC(); g.Silences > 0 && (sum.LastSilence == nil || t.After(sum.LastSilence.End)) {
		sum.LastSilence = &report.Silence{End: t, Seconds: g.LastSilent.Seconds()}
	}
	sum.Unreadable += g.Unreadable
}

// union returns the texts of a and b, sorted and each once; never nil.
func union(a, b []string) []string {
	list := append(append([]string{}, a...), b...)
	slices.Sort(list)
	return slices.Compact(list)
}

// objectsByKind returns the numbers of objects in a view.
func objectsByKind(st *kubernetes.Stats) byLabel {
	return byLabel{
		"service": uint64(st.Services), "endpointslice": uint64(st.Slices), "endpoint": uint64(st.Endpoints),
		"namespace": uint64(st.Namespaces), "pod": uint64(st.Pods),
	}
}
