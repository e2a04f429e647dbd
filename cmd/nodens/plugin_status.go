package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

func newPluginStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the agents of a cluster are",
		Long: `Show how the agents of a cluster are, one in a row: who serves the node and since when, the rates of
the last minute, the upstreams that are down, and why an agent is not healthy.

Exit codes: 0 all agents are ready and have no problem; 1 one of them has, or does not answer; 2 a
flag or an argument is not valid.`,
		Example: "  kubectl nodens status\n  kubectl nodens status --context production -o json",
		Args:    cli.NoArgs,
	}
	cluster := addCluster(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runPluginStatus(cmd.Context(), cluster, output, cmd.OutOrStdout())
	}
	return cmd
}

// runPluginStatus prints the status of all agents. The error says what is wrong with them.
func runPluginStatus(ctx context.Context, cluster *kubectl.Cluster, output *cli.Output, stdout io.Writer) error {
	s, err := kubectl.Status(ctx, cluster)
	if err != nil {
		return err
	}
	err = output.Print(stdout, s, func(w io.Writer) error { return printClusterStatus(w, s, time.Now(), output.Wide()) })
	if err != nil || s.Healthy {
		return err
	}
	if err := errUnanswered(&s.Cluster); err != nil {
		return err
	}
	var text []string
	if n := problems(s); n > 0 {
		text = append(text, agentsText(n, "has a problem", "have a problem"))
	}
	if n := len(s.Unanswered); n > 0 {
		text = append(text, agentsText(n, "has not answered", "have not answered"))
	}
	return errors.New(strings.Join(text, "; "))
}

// agentsText returns what n agents do, in words for one and for several.
func agentsText(n int, one, several string) string {
	if n == 1 {
		return "1 agent " + one
	}
	return fmt.Sprintf("%d agents %s", n, several)
}

// problems returns the number of agents that are not healthy.
func problems(s *report.ClusterStatus) (n int) {
	for i := range s.Agents {
		if !s.Agents[i].Healthy {
			n++
		}
	}
	return n
}

func printClusterStatus(out io.Writer, s *report.ClusterStatus, now time.Time, wide bool) error {
	if s.Nodes > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		columns := []string{"NODE", "STATE", "SERVING", "VERSION", "QPS", "HIT", "KERNEL", "SERVFAIL", "P50", "P99", "UPSTREAMS", "PROBLEM"}
		if wide {
			columns = append(columns, "INSTANCE", "HAND-OVER", "FAIL-OPEN", "VIEW")
		}
		fmt.Fprintln(w, strings.Join(columns, "\t"))
		for i := range s.Agents {
			fmt.Fprintln(w, strings.Join(statusRow(&s.Agents[i], now, wide), "\t"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	printUnanswered(out, &s.Cluster, wide)
	return nil
}

// statusRow returns the columns of one agent.
func statusRow(s *report.Status, now time.Time, wide bool) []string {
	r := &s.Rates
	upstreams := fmt.Sprint(s.Upstreams.Total)
	if s.Upstreams.Down > 0 {
		upstreams += fmt.Sprintf(", %d down", s.Upstreams.Down)
	}
	if s.Upstreams.Suspect > 0 {
		upstreams += fmt.Sprintf(", %d suspect", s.Upstreams.Suspect)
	}
	row := []string{
		cmp.Or(s.Node, "unknown"), s.State(), s.Servers(agoAt(now)), s.Version, fmt.Sprintf("%.1f", r.QueriesPerSecond), percent(r.HitRatio), percent(r.KernelShare), percent(r.ServfailShare),
		latency(r.P50Seconds), latency(r.P99Seconds), upstreams, cmp.Or(strings.Join(s.Problems, "; "), "-"),
	}
	if !wide {
		return row
	}
	return append(row, s.Instance, s.Handover.Text(agoAt(now)), s.FailOpen.Text(), s.View.Text(false))
}
