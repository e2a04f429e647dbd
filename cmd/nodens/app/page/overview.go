package page

import (
	"cmp"
	"fmt"
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

// state is the condition of the agent.
type state struct {
	Text, Class string // Class is good, warning or bad
	Node        string
	Problems    []report.Problem
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
	return append(list, adviceTable(source, v), upstreamsTable(source.Upstreams(), v))
}

// newestFirst returns faults in reverse order.
func newestFirst(faults []report.Fault) []report.Fault {
	faults = slices.Clone(faults)
	slices.Reverse(faults)
	return faults
}

// newState returns the condition of the agent.
func newState(s *report.Status, now time.Time) state {
	out := state{Text: s.State(), Class: "good", Node: cmp.Or(s.Node, "unknown node"), Problems: s.Problems}
	switch {
	case s.Healthy:
	case s.Ready:
		out.Class = "warning"
	default:
		out.Class = "bad"
	}
	ago := func(then time.Time) string { return since(now, then) }
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
	add("View", "%s", s.View.Text(false))
	add("Fail-open", "%s", s.FailOpen.Text())
	add("Limits", "%s", limitsText(s.Limits))
	addFairShares(add, &s.FairShares)
	add("Serving", "%s", cmp.Or(s.Servers(ago), "for "+ago(s.ServingSince)))
	add("Hand-over", "%s", s.Handover.Text(ago))
	add("Configuration", "%s, in force for %s", s.Config.Path, ago(s.Config.Loaded))
	if rejected := s.Config.LastRejected; rejected != nil {
		add("Last rejected", "%s ago: %s", ago(rejected.Time), rejected.Error)
	}
	add("Agent", "version %s, instance %s", s.Version, s.Instance)
	return out
}

// limitsText names the limits that are nearly reached.
func limitsText(limits []report.Limit) string {
	var parts []string
	for _, l := range limits {
		if l.Share >= report.NearLimit {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s", l.Name, l.Of))+" at "+percent(l.Share))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none is nearly reached")
}

// addFairShares adds the limited clients, the budgets, and who loses a place to wait in first.
func addFairShares(add func(name, format string, args ...any), f *report.FairShares) {
	const few = 3
	var limited, budgets, waiting []string
	for i := range f.Limited[:min(few, len(f.Limited))] {
		c := &f.Limited[i]
		limited = append(limited, fmt.Sprintf("%s: %s", c.Label(), c.Text(f.Seconds)))
	}
	if more := len(f.Limited) - len(limited) + f.MoreLimited; more > 0 {
		limited = append(limited, fmt.Sprintf("and %d more", more))
	}
	for i := range f.Budgets[:min(few, len(f.Budgets))] {
		budgets = append(budgets, fmt.Sprintf("%s: %s", f.Budgets[i].To, f.Budgets[i].Text()))
	}
	for i := range f.Waiting[:min(few, len(f.Waiting))] {
		waiting = append(waiting, f.Waiting[i].Text())
	}
	add("Limited clients", "%s", cmp.Or(strings.Join(limited, "; "), "none"))
	if len(budgets) > 0 {
		add("Upstream budgets", "%s", strings.Join(budgets, "; "))
	}
	add("Shed next", "%s", cmp.Or(strings.Join(waiting, ", "), "none: no query waits"))
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
