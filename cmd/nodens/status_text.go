package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

// gapsText says what the view could not show, "" for nothing.
func gapsText(v *report.View, now time.Time) string {
	if v == nil {
		return ""
	}
	g := v.Gaps
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if len(g.Failing) > 0 {
		text := "requests for " + strings.Join(g.Failing, ", ") + " fail"
		if v.Error != "" {
			text += ": " + v.Error
		}
		if v.Fix != "" {
			text += " (" + v.Fix + ")"
		}
		parts = append(parts, text)
	}
	if len(g.Unlisted) > 0 {
		add("no list yet of %s", strings.Join(g.Unlisted, ", "))
	}
	if g.LastRelist != nil {
		add("listed again %d times, last %s ago", g.Relists, since(now, *g.LastRelist))
	}
	if g.LastSetBack != nil {
		add("resourceVersions of the API server set back %d times, last %s ago", g.SetBacks, since(now, *g.LastSetBack))
	}
	if s := g.LastSilence; s != nil {
		add("API server silent %d times, last for %.0f s until %s ago", g.Silences, s.Seconds, since(now, s.End))
	}
	if g.Unreadable > 0 {
		add("%d unreadable objects", g.Unreadable)
	}
	return strings.Join(parts, "; ")
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

// printFairShares writes the limited clients, the budgets, and who loses a place to wait in first.
func printFairShares(line func(name, format string, args ...any), f *report.FairShares, wide bool) {
	const few = 3
	limited := f.Limited
	if !wide {
		limited = limited[:min(few, len(limited))]
	}
	for i := range limited {
		line("limited", "%s: %s", limited[i].Label(), limited[i].Text(f.Seconds))
	}
	if more := len(f.Limited) - len(limited) + f.MoreLimited; more > 0 {
		line("limited", "and %d more clients", more)
	}
	for i := range f.Budgets {
		b := &f.Budgets[i]
		text := b.Text()
		if len(b.Clients) > 0 {
			text += ", most of " + waitingText(b.Clients)
		}
		line("budget", "%s: %s", b.To, text)
	}
	if len(f.Waiting) > 0 {
		line("shed next", "%s", waitingText(f.Waiting))
	}
}

// waitingText returns the clients with their numbers of waiting queries.
func waitingText(list []report.WaitingClient) string {
	const few = 3
	parts := make([]string, 0, few)
	for i := range list[:min(few, len(list))] {
		parts = append(parts, list[i].Text())
	}
	return strings.Join(parts, ", ")
}
