package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// upstreamOrders are the values of --sort with --by upstream: what is compared, the highest first.
var upstreamOrders = map[string]func(*report.ClusterUpstream) float64{
	"queries":  func(u *report.ClusterUpstream) float64 { return u.PerSecond },
	"servfail": func(u *report.ClusterUpstream) float64 { return u.PerSecond * u.ServfailShare },
	"p99":      func(u *report.ClusterUpstream) float64 { return u.P99Seconds },
}

// upstreamRow is a row of a table of upstreams.
type upstreamRow struct {
	report.ClusterUpstream
	own     *report.Upstream // nil for the sum of several nodes
	forward *report.Forward  // nil for the sum of several directives
}

// askUpstreams asks for the table by upstream.
func askUpstreams(ctx context.Context, f *topFlags) (*topTable, error) {
	order := upstreamOrders[f.sort]
	var list []upstreamRow
	if f.cluster != nil {
		u, err := kubectl.Upstreams(ctx, f.cluster, order)
		if err != nil {
			return nil, err
		}
		for i := range u.Upstreams {
			list = append(list, upstreamRow{ClusterUpstream: u.Upstreams[i]})
		}
		t := upstreamTable(f, u, list, fmt.Sprintf("%s: %.1f exchanges/s with %d upstreams", nodesText(u.Nodes), u.PerSecond, len(list)))
		t.cluster, t.more = u.Cluster, t.more+u.More
		return t, nil
	}
	u := new(report.Upstreams)
	if err := f.socket.ask(ctx, http.MethodGet, "/upstreams", nil, u); err != nil {
		return nil, err
	}
	servers := u.Servers()
	var seconds, sum float64
	for i := range servers {
		seconds, sum = max(seconds, servers[i].Recent.Seconds), sum+servers[i].Recent.PerSecond
	}
	for i := range servers {
		row := upstreamRow{ClusterUpstream: kubectl.UpstreamRow(&servers[i]), own: &servers[i]}
		if sum > 0 {
			row.Share = row.PerSecond / sum
		}
		list = append(list, row)
	}
	slices.SortStableFunc(list, func(a, b upstreamRow) int { return cmp.Compare(order(&b.ClusterUpstream), order(&a.ClusterUpstream)) })
	t := upstreamTable(f, u, list, fmt.Sprintf("node %s: %.1f exchanges/s in the last %.0f s, with %d upstreams", cmp.Or(u.Node, "unknown"), sum, seconds, len(list)))
	t.cluster.Nodes = 1
	if u.More > 0 {
		t.foot = fmt.Sprintf("without %d more forward directives\n", u.More)
	}
	return t, nil
}

// upstreamTable returns the table of list.
func upstreamTable(f *topFlags, reply any, list []upstreamRow, head string) *topTable {
	rows := firstRows(list, f.rows)
	columns := upstreamColumns(list, false, f.cluster != nil, f.output.Wide())
	return &topTable{reply: reply, head: head, cells: cells(columns, rows), more: len(list) - len(rows)}
}

// newUpstreamsCommand returns `nodens upstreams`, which was there before `nodens top --by upstream`, and has a row for each
// server of each forward directive.
func newUpstreamsCommand() *cobra.Command {
	s := new(adminSocket)
	cmd := &cobra.Command{
		Use:     "upstreams",
		Short:   "Show the servers that the agent on this node forwards to",
		Long:    "Show the servers that the agent on this node forwards to, as nodens top --by upstream does.",
		Example: "  nodens top --by upstream",
		Args:    cli.NoArgs,
		Hidden:  true,
	}
	s.register(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return show(cmd, s, output, "/upstreams", nil, printForwards)
	}
	return cmd
}

// printForwards writes a line for each server of each forward directive.
func printForwards(out io.Writer, u *report.Upstreams, wide bool) error {
	if len(u.Forwards) == 0 {
		_, err := fmt.Fprintln(out, "no forward directives")
		return err
	}
	var list []upstreamRow
	for i := range u.Forwards {
		f := &u.Forwards[i]
		for j := range f.Upstreams {
			list = append(list, upstreamRow{kubectl.UpstreamRow(&f.Upstreams[j]), &f.Upstreams[j], f})
		}
	}
	return printTable(out, upstreamColumns(list, true, false, wide), list, u.More, " forward directives")
}

// upstreamColumns returns the columns of a table of upstreams: budgets only if an upstream has one. forwards says that there is a
// row for each forward directive, several that rows are sums over nodes.
func upstreamColumns(rows []upstreamRow, forwards, several, wide bool) []column[upstreamRow] {
	type row = upstreamRow
	count := func(name string, n func(*report.Upstream) uint64) column[row] {
		return column[row]{name, func(r *row) string { return fmt.Sprint(n(r.own)) }}
	}
	budget := func(name string, text func(*report.Budget) string) column[row] {
		return column[row]{name, func(r *row) string {
			if r.Budget == nil {
				return "-"
			}
			return text(r.Budget)
		}}
	}
	limited := func(b *report.Budget, text string) string {
		if b.LimitPerSecond == 0 {
			return "-"
		}
		return text
	}
	perSecond := func(r *row) string { return tenths(r.PerSecond) }
	budgets := slices.ContainsFunc(rows, func(r row) bool { return r.Budget != nil })
	return slices.Concat(
		[]column[row]{{"UPSTREAM", func(r *row) string { return r.To }}},
		when(forwards, column[row]{"FROM", func(r *row) string { return r.forward.From }}, column[row]{"STATE", (*row).state}, column[row]{"EXCHANGES/s", perSecond}),
		when(several, column[row]{"NODES", func(r *row) string { return fmt.Sprint(r.Nodes) }}),
		when(!forwards, column[row]{"QPS", perSecond}, column[row]{"SHARE", func(r *row) string { return percent(r.Share) }}),
		[]column[row]{
			{"SERVFAIL", func(r *row) string { return percent(r.ServfailShare) }},
			{"UNANSWERED", func(r *row) string { return percent(r.UnansweredShare) }},
			{"P50", func(r *row) string { return latency(r.P50Seconds) }},
			{"P99", func(r *row) string { return latency(r.P99Seconds) }},
			{"RTT", func(r *row) string { return milliseconds(r.RTTSeconds) }},
		},
		when(!forwards, column[row]{"STATE", (*row).state}),
		when(forwards && wide, column[row]{"ZONES", func(r *row) string { return firstZones(r.forward.Zones) }}),
		when(wide && !several,
			column[row]{"EXCHANGES", rcodesText},
			count("HEALTHCHECK-FAILURES", func(u *report.Upstream) uint64 { return u.HealthcheckFailures }),
			count("CONNECTION-FAILURES", func(u *report.Upstream) uint64 { return u.ConnectionFailures }),
			count("UNEXPECTED", func(u *report.Upstream) uint64 { return u.UnexpectedReplies }),
			count("HEDGES", func(u *report.Upstream) uint64 { return u.Hedges }),
			count("HEDGE-WINS", func(u *report.Upstream) uint64 { return u.HedgeWins }),
			count("SUSPICIONS", func(u *report.Upstream) uint64 { return u.Suspicions }),
		),
		when(budgets,
			budget("BUDGET", func(b *report.Budget) string {
				limit := limited(b, fmt.Sprintf("%.0f/s", b.LimitPerSecond))
				if b.Auto {
					return "auto " + limit
				}
				return limit
			}),
			budget("USED", func(b *report.Budget) string { return limited(b, percent(b.UsedShare)) }),
			budget("WAITING", func(b *report.Budget) string { return fmt.Sprint(b.Waiting) }),
		),
		when(budgets && wide && !several,
			budget("WAITED", func(b *report.Budget) string { return fmt.Sprint(b.Waited) }),
			budget("EXPIRED", func(b *report.Budget) string { return fmt.Sprint(b.Expired) }),
			budget("GIVEN-UP", func(b *report.Budget) string { return fmt.Sprint(b.GivenUp) }),
		),
	)
}

// state says whether the server is down or suspect; of several nodes, on how many.
func (r *upstreamRow) state() string {
	if r.own != nil {
		return r.own.State()
	}
	var parts []string
	if r.Down > 0 {
		parts = append(parts, "down on "+nodesText(r.Down))
	}
	if r.Suspect > 0 {
		parts = append(parts, "suspect on "+nodesText(r.Suspect))
	}
	return cmp.Or(strings.Join(parts, ", "), "up")
}

// rcodesText returns "RCODE=N", the highest number first; "-" without any.
func rcodesText(r *upstreamRow) string {
	parts := r.own.Rcodes()
	for i, rcode := range parts {
		parts[i] = fmt.Sprintf("%s=%d", rcode, r.own.Exchanges[rcode])
	}
	return cmp.Or(strings.Join(parts, ","), "-")
}
