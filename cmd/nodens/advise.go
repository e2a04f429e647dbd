package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/advice"
	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// adviseFlags are the flags of `nodens advise`.
type adviseFlags struct {
	socket  adminSocket
	cluster *kubectl.Cluster // nil for the agent of this node
	window  string
	rows    int
	output  *cli.Output
	apply   string // the workload whose ndots is to be set, as NAMESPACE/NAME
	dryRun  bool
}

const adviseLong = `For each workload with search waste, show how much of its queries that is, and the changes that
stop it, with the queries that each one saves: the value of ndots for its pods, names to ask for
with a dot at the end, and autopath in the Corefile, for all pods together. The savings of a
workload's changes do not add up: each is what this change saves alone. The savings are computed
from counts of the window, and are too low rather than too high.

For each upstream whose budget (max_rate) is used by half or more, show the workload that asks
upstreams most, and what relieves the budget: a lower ndots, a longer TTL for names that it asks for
again and again, serve_stale, or client_limit for names that it asks for only once.

For pods without an IPv6 address, show how often they ask for one (AAAA), and how often an upstream
was asked because of it; aaaa auto in the Corefile saves that. Answers in the kernel do not count.

For each workload whose pods get truncated replies (TC) and have never asked over TCP, show how many
replies that are, and what to change: the client's setting, or bufsize in the Corefile.

For each workload whose pods ask other DNS servers than the agent, show the servers and how many
queries that are, if the agent has --bypass=count.`

func newAdviseCommand() *cobra.Command {
	f := new(adviseFlags)
	return f.command(&cobra.Command{
		Use:     "advise",
		Short:   "Show what would stop wasted look-ups of the pods of this node",
		Long:    adviseLong + "\nThe command asks the agent through its admin socket.",
		Example: "  nodens advise\n  nodens advise --window 1m -o yaml",
	}, f.socket.register)
}

func newPluginAdviseCommand() *cobra.Command {
	f := new(adviseFlags)
	return f.command(&cobra.Command{
		Use:     "advise",
		Short:   "Show what would stop wasted look-ups of the pods of a cluster",
		Long:    adviseLong + applyLong,
		Example: "  kubectl nodens advise\n  kubectl nodens advise -o wide\n  kubectl nodens advise --apply shop/web --dry-run",
	}, func(flags *pflag.FlagSet) {
		f.cluster = addCluster(flags)
		flags.StringVar(&f.apply, "apply", "", "set the advised ndots in the pod template of this `workload`, NAMESPACE/NAME")
		flags.BoolVar(&f.dryRun, "dry-run", false, "with --apply: show the change, and let the API server check it, without making it")
	})
}

const applyLong = `

With --apply, set the advised ndots in the pod template of one workload: a Deployment, StatefulSet,
DaemonSet or CronJob. The options before and after are printed; others stay as they are, and if
the object has changed meanwhile, the command fails. The change replaces the workload's pods.
Without --apply nothing is changed.`

// command returns cmd with the flags f, and those of addAgents, which say which agents are asked.
func (f *adviseFlags) command(cmd *cobra.Command, addAgents func(*pflag.FlagSet)) *cobra.Command {
	f.window = "1h"
	cli.Enum(cmd.Flags(), &f.window, "window", windowUsage, timeWindows...)
	cmd.Flags().IntVar(&f.rows, "rows", defaultTopRows, "`number` of workloads of the table; 0 for all")
	addAgents(cmd.Flags())
	f.output = cli.AddTableOutput(cmd.Flags())
	cmd.Args = cli.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.cluster == nil {
			return f.run(cmd.Context(), cmd.OutOrStdout())
		}
		if f.dryRun && f.apply == "" {
			return cli.Usagef("--dry-run is for --apply, which names the workload")
		}
		a, err := kubectl.Advice(cmd.Context(), f.cluster, f.window)
		if err != nil {
			return err
		}
		if f.apply != "" {
			return f.applyNdots(cmd.Context(), cmd.OutOrStdout(), a)
		}
		return f.print(cmd.OutOrStdout(), a, a, nodesText(a.Nodes))
	}
	return cmd
}

// applyNdots sets the advised ndots of one workload of a, and prints what it changes before it does.
func (f *adviseFlags) applyNdots(ctx context.Context, stdout io.Writer, a *report.ClusterAdvice) error {
	printUnanswered(stdout, &a.Cluster, false)
	if err := errUnanswered(&a.Cluster); err != nil {
		return err
	}
	workload, ndots, err := ndotsFor(a, f.apply)
	if err != nil {
		return err
	}
	p, err := f.cluster.NdotsPatch(ctx, workload, ndots)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s %s: in the pod template, dnsConfig.options from %q to %q\n", workload.WorkloadKind, f.apply, p.Before, p.After)
	if err := p.Apply(ctx, f.dryRun); err != nil {
		return err
	}
	done := "changed"
	if f.dryRun {
		done = "not changed: dry run, which the API server accepts"
	}
	_, err = fmt.Fprintln(stdout, done)
	return err
}

// ndotsFor returns the workload that name is, as NAMESPACE/NAME, and its advised ndots.
func ndotsFor(a *report.ClusterAdvice, name string) (workload *report.AdvisedWorkload, ndots int, err error) {
	for i := range a.Workloads {
		w := &a.Workloads[i]
		at := slices.IndexFunc(w.Changes, func(c report.Change) bool { return c.Kind == report.ChangeNdots })
		if at < 0 || w.Namespace+"/"+w.Workload != name {
			continue
		}
		if workload != nil {
			return nil, 0, fmt.Errorf("%s is a %s and a %s: change one of them by hand", name, workload.WorkloadKind, w.WorkloadKind)
		}
		workload, ndots = w, w.Changes[at].Ndots
	}
	if workload == nil {
		return nil, 0, fmt.Errorf("no ndots is advised for %q: kubectl nodens advise --rows 0 shows all workloads with advice, as NAMESPACE/NAME", name)
	}
	return workload, ndots, nil
}

// run asks the agent of this node, and prints the advice.
func (f *adviseFlags) run(ctx context.Context, stdout io.Writer) error {
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
	var bypass report.Names // which an agent without --bypass=count refuses
	_ = f.socket.ask(ctx, http.MethodGet, "/names", url.Values{"topic": {topicBypass}, "window": {f.window}}, &bypass)
	a := advice.Of(&clients, &names, &waste)
	a.Bypasses = advice.Bypasses(&bypass)
	a.Budgets = advice.Budgets(&upstreams, &clients, &names, &waste, a.Workloads)
	one := &report.ClusterAdvice{
		Cluster: report.Cluster{Nodes: 1}, WindowSeconds: a.WindowSeconds, AdviceCounts: a.AdviceCounts, Budgets: kubectl.NodeBudgets(a.Node, a.Budgets),
	}
	return f.print(stdout, a, one, "node "+cmp.Or(a.Node, "unknown"))
}

// print writes reply, or as text a, the same of one or more nodes.
func (f *adviseFlags) print(stdout io.Writer, reply any, a *report.ClusterAdvice, where string) error {
	err := printCluster(stdout, f.output, reply, &a.Cluster, func(w io.Writer) error {
		fmt.Fprintf(w, "%s: %d queries of pods in the last %s, of which %s are search waste\n", where, a.Queries, seconds(a.WindowSeconds).Round(time.Second), percent(wasteShare(a)))
		if a.UnusableUpstream > 0 {
			fmt.Fprintf(w, "pods without an IPv6 address asked %d times for one (%s of the queries), and an upstream was asked %d times; aaaa auto in the Corefile saves that\n",
				a.UnusableAAAA, percent(float64(a.UnusableAAAA)/float64(a.Queries)), a.UnusableUpstream)
		}
		err := cmp.Or(f.printWorkloads(w, a), f.printTruncated(w, a.Truncated), f.printBypasses(w, a.Bypasses), printBudgets(w, a.Budgets))
		printMore(w, a.MoreBudgets, "")
		return err
	})
	return cmp.Or(err, errUnanswered(&a.Cluster))
}

func wasteShare(a *report.ClusterAdvice) float64 {
	if a.Queries == 0 {
		return 0
	}
	return float64(a.Waste) / float64(a.Queries)
}

// printWorkloads writes a row for each change, and how the kinds of changes are made.
func (f *adviseFlags) printWorkloads(out io.Writer, a *report.ClusterAdvice) error {
	if len(a.Workloads) == 0 {
		_, err := fmt.Fprintf(out, "nothing to advise: no workload wastes %.0f%% of its queries\n", 100*report.LeastWaste)
		return err
	}
	table := [][]string{{"WORKLOAD", "QPS", "WASTE", "CHANGE", "SAVES"}}
	if f.output.Wide() {
		table[0] = append(table[0], "NAMES")
	}
	rows := firstRows(a.Workloads, f.rows)
	for i := range rows {
		w := &rows[i]
		list := changeCells(w.Changes)
		if len(list) == 0 {
			list = [][]string{{"none: " + noChangeText(w), "-"}}
		}
		if f.output.Wide() {
			list[0] = append(list[0], namesText(w))
		}
		table = append(table, grouped([]string{w.Namespace + "/" + w.Workload, tenths(w.QueriesPerSecond), percent(w.WasteShare)}, list)...)
	}
	for _, change := range changeCells(a.Changes) {
		table = append(table, append([]string{"(all)", tenths(a.QueriesPerSecond), percent(wasteShare(a))}, change...))
	}
	w := newAligner(out)
	fmt.Fprintln(w)
	writeCells(w, table)
	printMore(w, len(a.Workloads)-len(rows), "")
	fmt.Fprintln(w)
	if changes(a, report.ChangeNdots) {
		fmt.Fprintln(w, `ndots N: in the pod template, dnsConfig: {options: [{name: ndots, value: "N"}]}`)
	}
	if changes(a, report.ChangeTrailingDot) {
		fmt.Fprintln(w, "ask for NAME.: in the application's configuration, the name with a dot at the end; * stands for any label")
	}
	fmt.Fprintln(w, "autopath: in the Corefile, autopath @kubernetes next to the kubernetes directive")
	return w.Flush()
}

// changes reports whether a has a change of that kind for a workload.
func changes(a *report.ClusterAdvice, kind string) bool {
	return slices.ContainsFunc(a.Workloads, func(w report.AdvisedWorkload) bool {
		return slices.ContainsFunc(w.Changes, func(c report.Change) bool { return c.Kind == kind })
	})
}

// grouped returns a row for each of the lists of cells, of which only the first row begins with the cells of first.
func grouped(first []string, lists [][]string) [][]string {
	rows := make([][]string, len(lists))
	for i, cells := range lists {
		if i == 1 {
			first = make([]string, len(first))
		}
		rows[i] = append(first[:len(first):len(first)], cells...)
	}
	return rows
}

// changeCells returns for each change what it is, and what it saves.
func changeCells(changes []report.Change) (list [][]string) {
	for _, c := range changes {
		text := c.Kind
		switch c.Kind {
		case report.ChangeNdots:
			text = fmt.Sprintf("ndots %d", c.Ndots)
		case report.ChangeTrailingDot:
			text = "ask for " + c.Name
		}
		list = append(list, []string{text, fmt.Sprintf("%.1f/s (%s)", c.SavedPerSecond, percent(c.SavedShare))})
	}
	return list
}

// noChangeText says why there is no change for a workload.
func noChangeText(a *report.AdvisedWorkload) string {
	if a.Ndots != nil && *a.Ndots < advice.DefaultNdots && len(a.Names) > 0 {
		return fmt.Sprintf("its pods have ndots %d already", *a.Ndots)
	}
	return "the names are not known, or there are too many"
}

// namesText returns the names with the most waste.
func namesText(a *report.AdvisedWorkload) string {
	const few = 3
	var list []string
	for _, n := range firstRows(a.Names, few) {
		list = append(list, fmt.Sprintf("%s %s", n.Name, percent(float64(n.Waste)/float64(a.Waste))))
	}
	if a.NamesOf == "namespace" {
		list = append(list, "(of the namespace)")
	}
	return cmp.Or(strings.Join(list, ", "), "-")
}

// reliefCells returns the kind and the reason of each of list, and adds the first of each kind to kinds.
func reliefCells(list []report.Relief, kinds *[]report.Relief) (cells [][]string) {
	for _, r := range list {
		cells = append(cells, []string{r.Kind, r.Reason})
		if !slices.ContainsFunc(*kinds, func(k report.Relief) bool { return k.Kind == r.Kind }) {
			*kinds = append(*kinds, r)
		}
	}
	return cells
}

// writeReliefs writes what to do for each kind.
func writeReliefs(w io.Writer, kinds []report.Relief) {
	if len(kinds) > 0 {
		fmt.Fprintln(w)
	}
	for _, r := range kinds {
		fmt.Fprintf(w, "%s: %s\n", r.Kind, r.Text)
	}
}

// printTruncated writes the clients that get truncated replies and never ask over TCP, and what to change; nothing for none.
func (f *adviseFlags) printTruncated(out io.Writer, list []report.TruncatedClient) error {
	if len(list) == 0 {
		return nil
	}
	table, kinds := [][]string{{"CLIENT", "REPLIES", "CHANGE", "WHY"}}, []report.Relief{}
	rows := firstRows(list, f.rows)
	for i := range rows {
		c := &rows[i]
		table = append(table, grouped([]string{c.Label(), fmt.Sprint(c.Replies)}, reliefCells(c.Remedies, &kinds))...)
	}
	w := newAligner(out)
	fmt.Fprintln(w, "\nThese clients got truncated replies and have never asked over TCP: they miss records.")
	fmt.Fprintln(w)
	writeCells(w, table)
	printMore(w, len(list)-len(rows), "")
	slices.SortFunc(kinds, func(a, b report.Relief) int { return cmp.Compare(b.Kind, a.Kind) }) // the client first
	writeReliefs(w, kinds)
	return w.Flush()
}

// printBypasses writes the clients that ask other DNS servers; nothing for none.
func (f *adviseFlags) printBypasses(out io.Writer, list []report.BypassClient) error {
	if len(list) == 0 {
		return nil
	}
	table := [][]string{{"CLIENT", "SERVER", "PROTOCOL", "QUERIES"}}
	rows := firstRows(list, f.rows)
	for i := range rows {
		b := &rows[i]
		table = append(table, []string{b.Label(), b.Server, b.Protocol, fmt.Sprint(b.Queries)})
	}
	w := newAligner(out)
	fmt.Fprintln(w, "\nThese clients ask other DNS servers directly, without the agent's cache, its names of the cluster and its limits.")
	fmt.Fprintln(w)
	writeCells(w, table)
	printMore(w, len(list)-len(rows), "")
	fmt.Fprintln(w, "\nserver: in the pod template, dnsPolicy ClusterFirst without nameservers in dnsConfig; the application may have a setting, too")
	return w.Flush()
}

// printBudgets writes the budgets that are used most, with the workload that asks most and what relieves them; nothing
// for none.
func printBudgets(out io.Writer, list []report.NodeBudget) error {
	if len(list) == 0 {
		return nil
	}
	table := [][]string{{"NODE", "UPSTREAM", "BUDGET", "USED", "WAITING", "MOST-QUERIES", "UPSTREAM/s", "SHARE", "RELIEF", "WHY"}}
	kinds := []report.Relief{}
	for i := range list {
		b := &list[i]
		first := []string{b.Node, b.To, fmt.Sprintf("%.0f/s", b.LimitPerSecond), percent(b.UsedShare), fmt.Sprint(b.Waiting)}
		if t := b.Top; t != nil {
			first = append(first, t.Label(), tenths(t.UpstreamPerSecond), percent(t.Share))
		} else {
			first = append(first, "-", "-", "-")
		}
		reliefs := reliefCells(b.Relief, &kinds)
		if len(reliefs) == 0 {
			reliefs = [][]string{{"-", "-"}}
		}
		table = append(table, grouped(first, reliefs)...)
	}
	w := newAligner(out)
	fmt.Fprintln(w)
	writeCells(w, table)
	writeReliefs(w, kinds)
	return w.Flush()
}
