package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// clusterUpstreamOrders are the values of --sort with --by upstream, as [upstreamOrders].
var clusterUpstreamOrders = map[string]func(*report.ClusterUpstream) float64{
	"queries":  func(u *report.ClusterUpstream) float64 { return u.PerSecond },
	"servfail": func(u *report.ClusterUpstream) float64 { return u.PerSecond * u.ServfailShare },
	"p99":      func(u *report.ClusterUpstream) float64 { return u.P99Seconds },
}

func (f *topFlags) runClusterUpstreams(ctx context.Context, cluster *kubectl.Cluster, output *cli.Output, stdout io.Writer) error {
	u, err := kubectl.Upstreams(ctx, cluster, clusterUpstreamOrders[f.sort])
	if err != nil {
		return err
	}
	if err := output.Print(stdout, u, func(w io.Writer) error { return f.printClusterUpstreams(w, u, output.Wide()) }); err != nil {
		return err
	}
	return errUnanswered(&u.Cluster)
}

func (f *topFlags) printClusterUpstreams(out io.Writer, u *report.ClusterUpstreams, wide bool) error {
	if u.Nodes > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "%s: %.1f exchanges/s with %d upstreams\n\n", nodesText(u.Nodes), u.PerSecond, len(u.Upstreams))
		format := budgetFormat{shown: slices.ContainsFunc(u.Upstreams, func(to report.ClusterUpstream) bool { return to.Budget != nil })}
		columns := append(append([]string{upstreamColumns[0], "NODES"}, upstreamColumns[1:]...), format.columns()...)
		fmt.Fprintln(w, strings.Join(columns, "\t"))
		rows := shown(f, u.Upstreams)
		for i := range rows {
			to := &rows[i]
			row := []string{
				to.To, fmt.Sprint(to.Nodes), fmt.Sprintf("%.1f", to.PerSecond), percent(to.Share), percent(to.ServfailShare), percent(to.UnansweredShare),
				latency(to.P50Seconds), latency(to.P99Seconds), milliseconds(to.RTTSeconds), clusterUpstreamState(to),
			}
			fmt.Fprintln(w, strings.Join(append(row, format.row(to.Budget)...), "\t"))
		}
		printMore(w, len(u.Upstreams)-len(rows)+u.More)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	printUnanswered(out, &u.Cluster, wide)
	return nil
}

// clusterUpstreamState says on how many nodes a server is down or suspect.
func clusterUpstreamState(u *report.ClusterUpstream) string {
	var parts []string
	if u.Down > 0 {
		parts = append(parts, "down on "+nodesText(u.Down))
	}
	if u.Suspect > 0 {
		parts = append(parts, "suspect on "+nodesText(u.Suspect))
	}
	return cmp.Or(strings.Join(parts, ", "), "up")
}
