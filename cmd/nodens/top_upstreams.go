package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nodens-dns/nodens/internal/report"
)

// upstreamOrders are the values of --sort with --by upstream: what is compared, the highest first.
var upstreamOrders = map[string]func(*report.Upstream) float64{
	"queries":  func(u *report.Upstream) float64 { return u.Recent.PerSecond },
	"servfail": func(u *report.Upstream) float64 { return u.Recent.PerSecond * u.Recent.ServfailShare },
	"p99":      func(u *report.Upstream) float64 { return u.Recent.P99Seconds },
}

// upstreamColumns are the columns of the table by upstream.
var upstreamColumns = []string{"UPSTREAM", "QPS", "SHARE", "SERVFAIL", "UNANSWERED", "P50", "P99", "RTT", "STATE"}

// upstreamTable is the table by upstream.
type upstreamTable struct{ *report.Upstreams }

func (t upstreamTable) reply() any { return t.Upstreams }

// askUpstreams asks the agent for its upstreams.
func askUpstreams(ctx context.Context, f *topFlags) (topTable, error) {
	u := new(report.Upstreams)
	if err := f.socket.ask(ctx, http.MethodGet, "/upstreams", nil, u); err != nil {
		return nil, err
	}
	return upstreamTable{u}, nil
}

func (t upstreamTable) print(out io.Writer, f *topFlags, _ bool) error {
	list, order := t.Servers(), upstreamOrders[f.sort]
	slices.SortStableFunc(list, func(a, b report.Upstream) int { return cmp.Compare(order(&b), order(&a)) })
	var seconds, sum float64
	for i := range list {
		seconds, sum = max(seconds, list[i].Recent.Seconds), sum+list[i].Recent.PerSecond
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "node %s: %.1f exchanges/s in the last %.0f s, with %d upstreams\n\n", cmp.Or(t.Node, "unknown"), sum, seconds, len(list))
	format := newBudgetFormat(list, false)
	fmt.Fprintln(w, strings.Join(append(slices.Clip(upstreamColumns), format.columns()...), "\t"))
	rows := shown(f, list)
	for i := range rows {
		u := &rows[i]
		share := 0.0
		if sum > 0 {
			share = u.Recent.PerSecond / sum
		}
		row := []string{
			u.To, fmt.Sprintf("%.1f", u.Recent.PerSecond), percent(share), percent(u.Recent.ServfailShare), percent(u.Recent.UnansweredShare),
			latency(u.Recent.P50Seconds), latency(u.Recent.P99Seconds), milliseconds(u.RTTSeconds), u.State(),
		}
		fmt.Fprintln(w, strings.Join(append(row, format.row(u.Budget)...), "\t"))
	}
	printMore(w, len(list)-len(rows))
	if t.More > 0 {
		fmt.Fprintf(w, "without %d more forward directives\n", t.More)
	}
	return w.Flush()
}
