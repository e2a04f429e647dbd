package page

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// clientsTable returns the table of clients, and a note about the counts.
func clientsTable(source Source, p parameters) (table, string) {
	t := tableOf[report.Client]{
		id: "clients", caption: "Clients", order: "queries", empty: "No queries in this window.",
		search: func(c *report.Client) []string {
			return append([]string{c.Label(p.By), c.Namespace + "/" + c.Pod, c.Workload}, c.Addresses...)
		},
	}
	all, err := source.Clients(p.By, p.Window, t.limit(p))
	if err != nil {
		t.empty = err.Error()
		return t.build(nil, 0, p), ""
	}
	t.columns = clientColumns(all, p)
	note := fmt.Sprintf("%s queries per second in the last %.0f s, from %d addresses (limit %d)",
		perSecond(report.PerSecond(all.Total.Queries, all.WindowSeconds)), all.WindowSeconds, all.Addresses, all.AddressLimit)
	if all.Refused > 0 {
		note += fmt.Sprintf("; about %d others are (other)", all.Refused)
	}
	out := t.build(all.Clients, all.More, p)
	out.Wide = true
	return out, note
}

// clientColumns returns the columns of the table of clients.
func clientColumns(all *report.Clients, p parameters) []column[report.Client] {
	number := func(key, title, help string, value func(*report.Client) float64, format func(float64) string) column[report.Client] {
		return column[report.Client]{key, title, help, func(c *report.Client) cell { return cell{Text: format(value(c))} }, value}
	}
	share := func(key, title, help string, part func(*report.ClientCounts) uint64) column[report.Client] {
		return number(key, title, help, func(c *report.Client) float64 {
			return float64(part(&c.Window)) / float64(max(c.Window.Queries, 1))
		}, percent)
	}
	first := column[report.Client]{key: "name", title: strings.ToUpper(all.By[:1]) + all.By[1:], help: "who asks", text: func(c *report.Client) cell {
		return cell{Text: c.Label(all.By), Href: p.link("clients", func(p *parameters) { p.Search = c.Label(all.By) })}
	}}
	bar := number("share", "Share", "of all queries", func(c *report.Client) float64 { return c.Share }, percent)
	text := bar.text
	bar.text = func(c *report.Client) cell {
		shown := text(c)
		shown.HasBar, shown.Bar = true, int(100*c.Share+0.5)
		return shown
	}
	return []column[report.Client]{
		first,
		number("queries", "QPS", "queries per second", func(c *report.Client) float64 { return c.QueriesPerSecond }, perSecond),
		bar,
		share("hit", "Hit", "answered without an upstream", func(n *report.ClientCounts) uint64 { return n.Hits }),
		share("kernel", "Kernel", "answered in the kernel", func(n *report.ClientCounts) uint64 { return n.Kernel }),
		share("nxdomain", "NXDOMAIN", "names that do not exist", func(n *report.ClientCounts) uint64 { return n.NXDomain }),
		share("waste", "Waste", "NXDOMAIN for names that only a search path makes", func(n *report.ClientCounts) uint64 { return n.Waste }),
		share("servfail", "SERVFAIL", "queries that failed", func(n *report.ClientCounts) uint64 { return n.Servfail }),
		number("upstream", "Upstream/s", "queries per second for which an upstream was asked", func(c *report.Client) float64 {
			return report.PerSecond(c.Window.Upstream, all.WindowSeconds)
		}, perSecond),
		number("p50", "p50", "upper bound of the latency of half of the queries of the last minute", func(c *report.Client) float64 { return c.P50Seconds }, latency),
		number("p99", "p99", "upper bound of the latency of 99 % of the queries of the last minute", func(c *report.Client) float64 { return c.P99Seconds }, latency),
		number("slow", "Slow", "queries answered after 100 ms or later", func(c *report.Client) float64 { return float64(c.Window.Slow) }, whole),
		number("shed", "Shed", "queries refused because too many waited", func(c *report.Client) float64 { return float64(c.Window.Shed) }, whole),
		number("limited", "Limited", "queries and connections that a limit has stopped; not all of them are in QPS", func(c *report.Client) float64 { return float64(c.Window.Limited) }, whole),
		{key: "top", title: "Top name", help: "the name asked for most, and its least share", text: clientTopName},
	}
}

// clientTopName returns the name that c asks for most.
func clientTopName(c *report.Client) cell {
	if c.TopName == nil {
		return cell{Text: "–"}
	}
	return cell{Text: fmt.Sprintf("%s (%s)", c.TopName.Name, percent(c.TopName.Share)), Href: explainLink(c.TopName.Name, "")}
}

func whole(n float64) string { return fmt.Sprintf("%.0f", n) }

// upstreamRow is one server of one forward directive.
type upstreamRow struct {
	*report.Upstream
	from, zones string
}

// stateClasses are the classes of the states of upstreams.
var stateClasses = map[string]string{"up": "good", "suspect": "warning", "down": "bad"}

// upstreamsTable returns the table of upstreams.
func upstreamsTable(all *report.Upstreams, p parameters) table {
	var rows []upstreamRow
	for i := range all.Forwards {
		f := &all.Forwards[i]
		for j := range f.Upstreams {
			rows = append(rows, upstreamRow{&f.Upstreams[j], f.From, strings.Join(f.Zones, " ")})
		}
	}
	t := tableOf[upstreamRow]{
		id: "upstreams", caption: "Upstreams", order: "exchanges", empty: "The configuration has no forward directive.",
		search: func(u *upstreamRow) []string { return []string{u.To, u.from, u.zones} },
	}
	number := func(key, title, help string, value func(*upstreamRow) float64, format func(float64) string) column[upstreamRow] {
		return column[upstreamRow]{key, title, help, func(u *upstreamRow) cell { return cell{Text: format(value(u))} }, value}
	}
	t.columns = []column[upstreamRow]{
		{key: "name", title: "Upstream", help: "address and port", text: func(u *upstreamRow) cell { return cell{Text: u.To} }},
		{key: "from", title: "From", help: "names that are forwarded to it", text: func(u *upstreamRow) cell { return cell{Text: u.from} }},
		{key: "state", title: "State", help: "down: health checks fail; suspect: it left queries unanswered", text: func(u *upstreamRow) cell {
			return cell{Text: u.State(), Class: stateClasses[u.State()]}
		}},
		number("exchanges", "Exchanges/s", "in the last minute, over all forward directives with this server", func(u *upstreamRow) float64 { return u.Recent.PerSecond }, perSecond),
		number("servfail", "SERVFAIL", "share of the exchanges of the last minute", func(u *upstreamRow) float64 { return u.Recent.ServfailShare }, percent),
		number("p50", "p50", "upper bound, in the last minute", func(u *upstreamRow) float64 { return u.Recent.P50Seconds }, latency),
		number("p99", "p99", "upper bound, in the last minute", func(u *upstreamRow) float64 { return u.Recent.P99Seconds }, latency),
		number("rtt", "RTT", "smoothed response time", func(u *upstreamRow) float64 { return u.RTTSeconds }, roundTrip),
		number("budget", "Budget used", "share of the budget (max_rate) in the last second", budgetUsed, percent),
		{key: "limit", title: "Budget", help: "queries per second that it gets at most (max_rate), and how many wait for it", text: budgetCell},
		{key: "rcodes", title: "Replies", help: "by rcode, since the configuration was loaded", text: func(u *upstreamRow) cell { return cell{Text: rcodesText(u.Upstream)} }},
	}
	out := t.build(rows, all.More, p)
	out.Wide = true
	return out
}

// budgetUsed returns the used share of u's budget, 0 without one.
func budgetUsed(u *upstreamRow) float64 {
	if u.Budget == nil {
		return 0
	}
	return u.Budget.UsedShare
}

// budgetCell returns what u's budget is, and how many queries wait for it.
func budgetCell(u *upstreamRow) cell {
	if u.Budget == nil {
		return cell{Text: "–"}
	}
	text := u.Budget.Limit()
	if n := u.Budget.Waiting; n > 0 {
		text += fmt.Sprintf(", %d wait", n)
	}
	return cell{Text: text}
}

// roundTrip returns a time in milliseconds, "–" without one.
func roundTrip(seconds float64) string {
	if seconds == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f ms", 1000*seconds)
}

// rcodesText returns the numbers of replies by rcode, the highest first.
func rcodesText(u *report.Upstream) string {
	parts := u.Rcodes()
	for i, rcode := range parts {
		parts[i] = fmt.Sprintf("%s %d", rcode, u.Exchanges[rcode])
	}
	return cmp.Or(strings.Join(parts, ", "), "–")
}
