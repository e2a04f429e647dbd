package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

func newUpstreamsCommand() *cobra.Command {
	s := new(adminSocket)
	cmd := &cobra.Command{
		Use:   "upstreams",
		Short: "Show the servers that the agent on this node forwards to",
		Long: `Show the servers that the agent on this node forwards to: their state, the rates of the last
minute, and what went wrong since the agent started. If an upstream has a budget (max_rate), BUDGET
is the rate, USED the share of it in the last second, and WAITING the number of queries that wait
for it. It asks the agent through its admin socket.`,
		Example: "  nodens upstreams\n  nodens upstreams -o wide",
		Args:    cli.NoArgs,
	}
	s.register(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runUpstreams(cmd.Context(), s, output, cmd.OutOrStdout())
	}
	return cmd
}

func runUpstreams(ctx context.Context, socket *adminSocket, output *cli.Output, stdout io.Writer) error {
	var u report.Upstreams
	if err := socket.ask(ctx, http.MethodGet, "/upstreams", nil, &u); err != nil {
		return err
	}
	return output.Print(stdout, u, func(w io.Writer) error { return printUpstreams(w, &u, output.Wide()) })
}

// printUpstreams writes a line for each server of each forward directive.
func printUpstreams(out io.Writer, u *report.Upstreams, wide bool) error {
	if len(u.Forwards) == 0 {
		_, err := fmt.Fprintln(out, "no forward directives")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	columns := []string{"UPSTREAM", "FROM", "STATE", "EXCHANGES/s", "SERVFAIL", "UNANSWERED", "P50", "P99", "RTT"}
	if wide {
		columns = append(columns, "ZONES", "EXCHANGES", "HEALTHCHECK-FAILURES", "CONNECTION-FAILURES", "UNEXPECTED", "HEDGES", "HEDGE-WINS", "SUSPICIONS")
	}
	format := newBudgetFormat(u.Servers(), wide)
	fmt.Fprintln(w, strings.Join(append(columns, format.columns()...), "\t"))
	for _, f := range u.Forwards {
		for _, to := range f.Upstreams {
			fmt.Fprintln(w, strings.Join(append(upstreamRow(&f, &to, wide), format.row(to.Budget)...), "\t"))
		}
	}
	if u.More > 0 {
		fmt.Fprintf(w, "and %d more forward directives\n", u.More)
	}
	return w.Flush()
}

// upstreamRow returns the columns of one server.
func upstreamRow(f *report.Forward, to *report.Upstream, wide bool) []string {
	row := []string{
		to.To, f.From, to.State(), fmt.Sprintf("%.1f", to.Recent.PerSecond), percent(to.Recent.ServfailShare), percent(to.Recent.UnansweredShare),
		latency(to.Recent.P50Seconds), latency(to.Recent.P99Seconds), milliseconds(to.RTTSeconds),
	}
	if !wide {
		return row
	}
	const few = 3
	zones := strings.Join(f.Zones[:min(few, len(f.Zones))], ",")
	if len(f.Zones) > few {
		zones += fmt.Sprintf(",+%d", len(f.Zones)-few)
	}
	row = append(row, zones, rcodesText(to))
	for _, n := range []uint64{to.HealthcheckFailures, to.ConnectionFailures, to.UnexpectedReplies, to.Hedges, to.HedgeWins, to.Suspicions} {
		row = append(row, fmt.Sprint(n))
	}
	return row
}

// rcodesText returns "RCODE=N", the highest number first; "-" without any.
func rcodesText(to *report.Upstream) string {
	parts := to.Rcodes()
	for i, rcode := range parts {
		parts[i] = fmt.Sprintf("%s=%d", rcode, to.Exchanges[rcode])
	}
	return cmp.Or(strings.Join(parts, ","), "-")
}

// milliseconds returns a time, "-" if it is not known.
func milliseconds(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fms", 1000*seconds)
}
