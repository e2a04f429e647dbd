package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

// overview is what the main page shows.
type overview struct {
	P               parameters
	Node, Version   string
	State           state
	Charts          []chart
	Tables          []table
	By, Windows     []choice
	Counted         string // about the counts
	Faults          []report.Fault
	RefreshSeconds  float64
	ClearSearchHref string
}

// state is how the agent is.
type state struct {
	Text, Class string // Class is good, warning or bad
	Node        string
	Problems    []string
	Facts       []fact
}

// fact is one line about the agent.
type fact struct{ Name, Value string }

func (p *Page) newOverview(v parameters) overview {
	s := p.source.Status()
	h := p.source.History()
	o := overview{
		P: v, Node: cmp.Or(s.Node, "unknown node"), Version: s.Version, State: newState(s, p.now()), Charts: newCharts(&h),
		By: v.byChoices(), Windows: v.windowChoices(), Faults: newestFirst(s.Faults),
		ClearSearchHref: v.link("clients", func(v *parameters) { v.Search = "" }),
	}
	clients, counted := clientsTable(p.source, v)
	o.Tables, o.Counted = append([]table{clients}, otherTables(p.source, v)...), counted
	return o
}

// otherTables returns the tables besides the one of clients.
func otherTables(source Source, v parameters) (list []table) {
	for _, topic := range nameTopics {
		list = append(list, namesTable(source, topic, v))
	}
	return append(list, upstreamsTable(source.Upstreams(), v))
}

// newestFirst returns faults in reverse order.
func newestFirst(faults []report.Fault) []report.Fault {
	faults = slices.Clone(faults)
	slices.Reverse(faults)
	return faults
}

// newState returns how the agent is.
func newState(s *report.Status, now time.Time) state {
	out := state{Text: "healthy", Class: "good", Node: cmp.Or(s.Node, "unknown node"), Problems: s.Problems}
	switch {
	case s.Healthy:
	case s.Ready:
		out.Text, out.Class = "ready, with problems", "warning"
	default:
		out.Text, out.Class = "not ready", "bad"
	}
	add := func(name, format string, args ...any) {
		out.Facts = append(out.Facts, fact{name, fmt.Sprintf(format, args...)})
	}
	r := s.Rates
	add("Queries", "%s per second", perSecond(r.QueriesPerSecond))
	add("SERVFAIL", "%s", percent(r.ServfailShare))
	add("Latency", "p50 %s, p99 %s", latency(r.P50Seconds), latency(r.P99Seconds))
	add("Cache hits", "%s", percent(r.HitRatio))
	add("In the kernel", "%s", kernelText(s))
	add("Upstreams", "%s", upstreamsText(s.Upstreams))
	add("View", "%s", viewText(s.View))
	add("Fail-open", "%s", failOpenText(s.FailOpen))
	add("Limits", "%s", limitsText(s.Limits))
	add("Serving", "%s", servingText(s, now))
	add("Hand-over", "%s", handoverText(s.Handover, now))
	add("Configuration", "%s, in force for %s", s.Config.Path, since(now, s.Config.Loaded))
	if rejected := s.Config.LastRejected; rejected != nil {
		add("Last rejected", "%s ago: %s", since(now, rejected.Time), rejected.Error)
	}
	add("Agent", "version %s, instance %s", s.Version, s.Instance)
	return out
}

// servingText says who answers the node's queries, and since when.
func servingText(s *report.Status, now time.Time) string {
	if len(s.ServedBy) == 0 {
		return "for " + since(now, s.ServingSince)
	}
	var parts []string
	for _, by := range s.ServedBy {
		parts = append(parts, fmt.Sprintf("%s for %s", by.By, since(now, by.Since)))
	}
	return strings.Join(parts, ", ")
}

// limitsText names the limits that are close to their end.
func limitsText(limits []report.Limit) string {
	var parts []string
	for _, l := range limits {
		if l.Share >= report.NearLimit {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s", l.Name, l.Of))+" at "+percent(l.Share))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none is close to its end")
}

func kernelText(s *report.Status) string {
	if !s.KernelPath.Active {
		return "off"
	}
	return fmt.Sprintf("%s; %d pod interfaces answer, %d observe", percent(s.Rates.KernelShare), s.KernelPath.Answering, s.KernelPath.Watched)
}

func upstreamsText(c report.Counts) string {
	text := fmt.Sprint(c.Total)
	if c.Down > 0 {
		text += fmt.Sprintf(", %d down", c.Down)
	}
	if c.Suspect > 0 {
		text += fmt.Sprintf(", %d suspect", c.Suspect)
	}
	return text
}

func viewText(v *report.View) string {
	if v == nil {
		return "none"
	}
	var parts []string
	if !v.Synced {
		parts = append(parts, "not synced")
	}
	for _, kind := range slices.Sorted(maps.Keys(v.Objects)) {
		if n := v.Objects[kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%ss %d", kind, n))
		}
	}
	if v.AgeSeconds > 0 {
		parts = append(parts, fmt.Sprintf("last event %.0f s ago", v.AgeSeconds))
	}
	return cmp.Or(strings.Join(parts, ", "), "empty")
}

func failOpenText(f report.FailOpen) string {
	switch {
	case f.Rules == "":
		return "no rules"
	case !f.Active:
		return fmt.Sprintf("not active (%s)", f.Rules)
	}
	return fmt.Sprintf("active (%s), %d servers", f.Rules, f.Servers)
}

func handoverText(h report.Handover, now time.Time) string {
	text := "none"
	if h.Last != nil {
		text = fmt.Sprintf("%s %s ago", h.Last.Event, since(now, h.Last.Time))
		if h.Last.Reason != "" {
			text += "; the other agent gave back: " + h.Last.Reason
		}
	}
	if h.Comparing {
		text += "; comparing with the predecessor"
	}
	return text
}
