package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

// servedText names who serves, and for how long.
func servedText(status *report.Status, now time.Time) string {
	var parts []string
	for _, s := range status.ServedBy {
		parts = append(parts, fmt.Sprintf("%s for %s", s.By, since(now, s.Since)))
	}
	return strings.Join(parts, ", ")
}

func viewText(v *report.View, wide bool) string {
	if v == nil {
		return "none"
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(v.Objects)) {
		if n := v.Objects[kind]; n > 0 || wide {
			parts = append(parts, fmt.Sprintf("%ss %d", kind, n))
		}
	}
	text := strings.Join(parts, ", ")
	if !v.Synced {
		text = "not synced; " + text
	}
	if v.AgeSeconds > 0 {
		text += fmt.Sprintf("; last event %.0f s ago", v.AgeSeconds)
	}
	if v.Faulty > 0 {
		text += fmt.Sprintf("; %d objects that DNS can't show", v.Faulty)
	}
	return text
}

// gapsText says what the view could not show, "" for nothing.
func gapsText(v *report.View, now time.Time) string {
	if v == nil {
		return ""
	}
	g := v.Gaps
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if len(g.Failing) > 0 {
		add("requests for %s fail", strings.Join(g.Failing, ", "))
	}
	if len(g.Unlisted) > 0 {
		add("no list yet of %s", strings.Join(g.Unlisted, ", "))
	}
	if g.LastRelist != nil {
		add("listed again %d times, last %s ago", g.Relists, since(now, *g.LastRelist))
	}
	if s := g.LastSilence; s != nil {
		add("API server silent %d times, last for %.0f s until %s ago", g.Silences, s.Seconds, since(now, s.End))
	}
	if g.Unreadable > 0 {
		add("%d unreadable objects", g.Unreadable)
	}
	return strings.Join(parts, "; ")
}

// failOpenText says what happens to queries without an agent.
func failOpenText(f report.FailOpen) string {
	const lost = "without an agent, queries are lost"
	switch {
	case f.Active:
		return fmt.Sprintf("active (%s); %d servers of the cluster DNS", f.Rules, f.Servers)
	case f.Capable:
		return fmt.Sprintf("capable, but not active: %s; %s", f.Reason, lost)
	default:
		return fmt.Sprintf("not capable: %s; %s", f.Reason, lost)
	}
}

// limitText says how much of a limit is in use.
func limitText(l *report.Limit) string {
	used, bound := fmt.Sprint(l.Used), fmt.Sprint(l.Bound)
	if l.Unit == "bytes" {
		used, bound = mebibytes(l.Used), mebibytes(l.Bound)
	}
	text := fmt.Sprintf("%s: %s of %s (%.0f%%)", l.Name, used, bound, 100*l.Share)
	if l.Of != "" {
		text += ", at " + l.Of
	}
	return text
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
