package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// adviseFlags are the flags of `nodens advise`.
type adviseFlags struct {
	socket adminSocket
	window string
	rows   int
}

const adviseLong = `For each workload with search waste, show how much of its queries that is, and the changes that
stop it, with the queries that each one saves: the value of ndots for its pods, names to ask for
with a dot at the end, and autopath in the Corefile, for all pods together. The savings of a
workload's changes do not add up: each is what this change saves alone. The savings are computed
from counts of the window, and are too low rather than too high.

For each upstream whose budget (max_rate) is used by half or more, show the workload that asks
upstreams most, and what relieves the budget: a lower ndots, a longer TTL for names that it asks for
again and again, serve_stale, or client_limit for names that it asks for only once.

For each workload whose pods get truncated replies (TC) and have never asked over TCP, show how many
replies that are, and what to change: the client's setting, or bufsize in the Corefile.`

func newAdviseCommand() *cobra.Command {
	f := new(adviseFlags)
	cmd := &cobra.Command{
		Use:     "advise",
		Short:   "Show what would stop wasted look-ups of the pods of this node",
		Long:    adviseLong + "\nThe command asks the agent through its admin socket.",
		Example: "  nodens advise\n  nodens advise --window 1m -o yaml",
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	f.register(cmd)
	f.socket.register(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.run(cmd.Context(), output, cmd.OutOrStdout())
	}
	return cmd
}

func newPluginAdviseCommand() *cobra.Command {
	f := new(adviseFlags)
	cmd := &cobra.Command{
		Use:     "advise",
		Short:   "Show what would stop wasted look-ups of the pods of a cluster",
		Long:    adviseLong,
		Example: "  kubectl nodens advise\n  kubectl nodens advise -o wide",
		Args:    cli.NoArgs,
	}
	f.register(cmd)
	cluster := addCluster(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.runCluster(cmd.Context(), cluster, output, cmd.OutOrStdout())
	}
	return cmd
}

func (f *adviseFlags) register(cmd *cobra.Command) {
	cli.Enum(cmd.Flags(), "window", "1h", "time that is counted: half of it to all of it, up to now", []string{"10s", "1m", "1h"}, func(text string) { f.window = text })
	cmd.Flags().IntVar(&f.rows, "rows", defaultTopRows, "`number` of workloads of the table; 0 for all")
	f.window = "1h"
}

func (f *adviseFlags) run(ctx context.Context, output *cli.Output, stdout io.Writer) error {
	var clients report.Clients
	var names, waste report.Names
	var upstreams report.Upstreams
	for _, q := range []struct {
		path, key, value string
		reply            any
	}{{"/clients", "by", "workload", &clients}, {"/names", "topic", "client", &names}, {"/names", "topic", "waste", &waste}} {
		if err := f.socket.ask(ctx, http.MethodGet, q.path, url.Values{q.key: {q.value}, "window": {f.window}}, q.reply); err != nil {
			return err
		}
	}
	if err := f.socket.ask(ctx, http.MethodGet, "/upstreams", nil, &upstreams); err != nil {
		return err
	}
	a := advice.Of(&clients, &names, &waste)
	a.Budgets = advice.Budgets(&upstreams, &clients, &names, &waste, a.Workloads)
	return output.Print(stdout, a, func(w io.Writer) error {
		fmt.Fprintf(w, "node %s: ", cmp.Or(a.Node, "unknown"))
		if err := f.print(w, &a.AdviceCounts, a.WindowSeconds, output.Wide()); err != nil {
			return err
		}
		return cmp.Or(printTruncated(w, a.Truncated, f.rows), printBudgets(w, budgetsOf(a)))
	})
}

func (f *adviseFlags) runCluster(ctx context.Context, cluster *kubectl.Cluster, output *cli.Output, stdout io.Writer) error {
	a, err := kubectl.Advice(ctx, cluster, f.window)
	if err != nil {
		return err
	}
	err = output.Print(stdout, a, func(w io.Writer) error {
		if a.Nodes > 0 {
			fmt.Fprintf(w, "%s: ", nodesText(a.Nodes))
			if err := f.print(w, &a.AdviceCounts, a.WindowSeconds, output.Wide()); err != nil {
				return err
			}
			if err := cmp.Or(printTruncated(w, a.Truncated, f.rows), printBudgets(w, a.Budgets)); err != nil {
				return err
			}
			printMore(w, a.MoreBudgets)
		}
		printUnanswered(w, &a.Cluster, output.Wide())
		return nil
	})
	if err != nil {
		return err
	}
	return errUnanswered(&a.Cluster)
}

// print writes the counts of so many seconds, and a row for each change.
func (f *adviseFlags) print(out io.Writer, a *report.AdviceCounts, seconds float64, wide bool) error {
	share := 0.0
	if a.Queries > 0 {
		share = float64(a.Waste) / float64(a.Queries)
	}
	fmt.Fprintf(out, "%d queries of pods in the last %s, of which %s are search waste\n", a.Queries, time.Duration(seconds*float64(time.Second)).Round(time.Second), percent(share))
	if len(a.Workloads) == 0 {
		_, err := fmt.Fprintf(out, "nothing to advise: no workload wastes %.0f%% of its queries\n", 100*report.LeastWaste)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	columns := []string{"WORKLOAD", "QPS", "WASTE", "CHANGE", "SAVES"}
	if wide {
		columns = append(columns, "NAMES")
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join(columns, "\t"))
	list := a.Workloads
	if f.rows > 0 {
		list = list[:min(f.rows, len(list))]
	}
	for i := range list {
		printAdvised(w, &list[i], wide)
	}
	for _, c := range a.Changes {
		fmt.Fprintf(w, "(all)\t%.1f\t%s\t%s\t%s\n", a.QueriesPerSecond, percent(share), changeText(&c), savedText(&c))
	}
	printMore(w, len(a.Workloads)-len(list))
	if err := w.Flush(); err != nil {
		return err
	}
	return printHow(out, a)
}

// printAdvised writes the rows of one workload.
func printAdvised(w io.Writer, a *report.AdvisedWorkload, wide bool) {
	first := fmt.Sprintf("%s/%s\t%.1f\t%s", a.Namespace, a.Workload, a.QueriesPerSecond, percent(a.WasteShare))
	names := ""
	if wide {
		names = "\t" + namesText(a)
	}
	if len(a.Changes) == 0 {
		fmt.Fprintf(w, "%s\tnone: %s\t-%s\n", first, noChangeText(a), names)
	}
	for i := range a.Changes {
		c := &a.Changes[i]
		fmt.Fprintf(w, "%s\t%s\t%s%s\n", first, changeText(c), savedText(c), names)
		first, names = "\t\t", ""
	}
}

// noChangeText says why there is no change for a workload.
func noChangeText(a *report.AdvisedWorkload) string {
	if a.Ndots != nil && *a.Ndots < defaultNdots && len(a.Names) > 0 {
		return fmt.Sprintf("its pods have ndots %d already", *a.Ndots)
	}
	return "the names are not known, or there are too many"
}

// namesText returns the names with the most waste.
func namesText(a *report.AdvisedWorkload) string {
	const few = 3
	var list []string
	for i := range a.Names[:min(few, len(a.Names))] {
		list = append(list, fmt.Sprintf("%s %s", a.Names[i].Name, percent(float64(a.Names[i].Waste)/float64(a.Waste))))
	}
	if a.NamesOf == "namespace" {
		list = append(list, "(of the namespace)")
	}
	return cmp.Or(strings.Join(list, ", "), "-")
}

func changeText(c *report.Change) string {
	switch c.Kind {
	case report.ChangeNdots:
		return fmt.Sprintf("ndots %d", c.Ndots)
	case report.ChangeTrailingDot:
		return "ask for " + c.Name
	default:
		return c.Kind
	}
}

func savedText(c *report.Change) string {
	return fmt.Sprintf("%.1f/s (%s)", c.SavedPerSecond, percent(c.SavedShare))
}

// printHow writes how the kinds of changes are made.
func printHow(out io.Writer, a *report.AdviceCounts) error {
	kinds := make(map[string]bool)
	for i := range a.Workloads {
		for _, c := range a.Workloads[i].Changes {
			kinds[c.Kind] = true
		}
	}
	text := "\n"
	if kinds[report.ChangeNdots] {
		text += "ndots N: in the pod template, dnsConfig: {options: [{name: ndots, value: \"N\"}]}\n"
	}
	if kinds[report.ChangeTrailingDot] {
		text += "ask for NAME.: in the application's configuration, the name with a dot at the end; * stands for any label\n"
	}
	text += "autopath: in the Corefile, autopath @kubernetes next to the kubernetes directive\n"
	_, err := io.WriteString(out, text)
	return err
}
