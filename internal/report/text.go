package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Ago writes how long ago a time is, with its unit and without the word ago.
type Ago func(then time.Time) string

// State says how the agent is.
func (s *Status) State() string {
	switch {
	case s.Healthy:
		return "healthy"
	case s.Ready:
		return "ready, with problems"
	}
	return "not ready"
}

// Servers says who answers the node's queries, and for how long; "" if nobody does.
func (s *Status) Servers(ago Ago) string {
	var parts []string
	for _, by := range s.ServedBy {
		parts = append(parts, fmt.Sprintf("%s for %s", by.By, ago(by.Since)))
	}
	return strings.Join(parts, ", ")
}

// Text describes the last hand-over.
func (h *Handover) Text(ago Ago) string {
	text := "none"
	if h.Last != nil {
		text = fmt.Sprintf("%s %s ago", h.Last.Event, ago(h.Last.Time))
		if h.Last.Reason != "" {
			text += "; the other agent gave back: " + h.Last.Reason
		}
	}
	if h.Comparing {
		text += "; comparing with the predecessor"
	}
	return text
}

// Text describes the contents of v, which may be nil. With all, it includes the kinds without objects.
func (v *View) Text(all bool) string {
	if v == nil {
		return "none"
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(v.Objects)) {
		if n := v.Objects[kind]; n > 0 || all {
			parts = append(parts, fmt.Sprintf("%ss %d", kind, n))
		}
	}
	text := cmp.Or(strings.Join(parts, ", "), "empty")
	if !v.Synced {
		text = "not synced; " + text
	}
	switch {
	case v.NoEvent:
		text += fmt.Sprintf("; no event in %.0f s", v.AgeSeconds)
	case v.AgeSeconds > 0:
		text += fmt.Sprintf("; last event %.0f s ago", v.AgeSeconds)
	}
	if v.Faulty > 0 {
		text += fmt.Sprintf("; %d objects that DNS can't show", v.Faulty)
	}
	return text
}

// Text says what happens to queries without an agent.
func (f *FailOpen) Text() string {
	const lost = "without an agent, queries are lost"
	switch {
	case f.Active && f.Blocked != "":
		return fmt.Sprintf("active (%s); other programs' chains may drop queries: %s", f.Rules, f.Blocked)
	case f.Active && f.RulesReason != "":
		return fmt.Sprintf("active (%s: %s); %d servers of the cluster DNS", f.Rules, f.RulesReason, f.Servers)
	case f.Active:
		return fmt.Sprintf("active (%s); %d servers of the cluster DNS", f.Rules, f.Servers)
	case f.Capable:
		return fmt.Sprintf("capable, but not active: %s; %s", f.Reason, lost)
	}
	return fmt.Sprintf("not capable: %s; %s", f.Reason, lost)
}

// State returns up, down or suspect.
func (u *Upstream) State() string { return upstreamState(u.Down, u.Suspect) }

// Rcodes returns the rcodes of the exchanges, the most frequent one first.
func (u *Upstream) Rcodes() []string {
	return slices.SortedFunc(maps.Keys(u.Exchanges), func(a, b string) int {
		return cmp.Or(cmp.Compare(u.Exchanges[b], u.Exchanges[a]), cmp.Compare(a, b))
	})
}

func upstreamState(down, suspect bool) string {
	switch {
	case down:
		return "down"
	case suspect:
		return "suspect"
	}
	return "up"
}
