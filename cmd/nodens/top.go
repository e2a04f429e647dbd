package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// defaultTopRows is the number of rows of a table.
	defaultTopRows = 20
	// defaultTopWindow is the default of --window.
	defaultTopWindow = "1m"
	windowUsage      = "time that is counted: half of it to all of it, up to now"
)

// timeWindows are the values of --window.
var timeWindows = []string{"10s", "1m", "1h"}

// topFlags are the flags of `nodens top`.
type topFlags struct {
	socket                  adminSocket
	cluster                 *kubectl.Cluster // nil for the agent of this node
	by, topic, window, sort string
	rows                    int
	watch                   bool
	interval                time.Duration
	output                  *cli.Output
	width                   int // of the terminal; 0 is unlimited
}

func newTopCommand() *cobra.Command {
	f := &topFlags{watch: true, interval: 2 * time.Second}
	return f.command(&cobra.Command{
		Use:   "top",
		Short: "Show which pods of this node ask the agent how much, and which names",
		Long: `Show which pods, workloads or namespaces of this node ask the agent how much, and what they get:
the share of queries answered without an upstream (HIT) and in the kernel, of NXDOMAIN, of
NXDOMAIN for names that only a search path makes (WASTE), and of SERVFAIL; the queries per second
for which an upstream was asked; the latency of the last minute; and the name that is asked for
most. If a limit stopped queries of a client, the column LIMITED shows their number. If a client
got truncated replies (TC) and has never asked over TCP, the column NO-TCP shows the number of
these replies.

With --by name, show the names that are asked for most. --topic chooses others: names with the
client that asks (client), parents of names that only a search path makes (waste), and names whose
queries fail (failing) or take 100 ms or longer (slow), with the cause. With --by domain, show the
parents of the names that are asked for most. With --by upstream, show the servers that the agent
forwards to: their state and the rates of the last minute; -o wide adds what went wrong since the
configuration was loaded. If an upstream has a budget (max_rate), BUDGET is the rate, USED the share
of it in the last second, and WAITING the number of queries that wait for it. With --by bypass, show
the pods that send packets to the DNS ports of other servers, if the agent has --bypass=count: over
TCP each connection counts as a query. With --by denied, show the names that DNSPolicies and rpz
deny, with the pods that ask for them.

On a terminal the table is redrawn until Ctrl-C, unless --watch=false is given. The command asks the
agent through its admin socket.`,
		Example: "  nodens top\n  nodens top --by workload --sort nxdomain --window 1h\n  nodens top --by name --topic failing\n  nodens top --by upstream -o wide",
	}, f.socket.register)
}

func newPluginTopCommand() *cobra.Command {
	f := &topFlags{interval: 5 * time.Second} // each table starts a process in the pod of each agent
	return f.command(&cobra.Command{
		Use:   "top",
		Short: "Show which pods of a cluster ask the agents how much, and which names",
		Long: `Show which pods of a cluster ask the agents how much, and what they get, as nodens top does for one
node. Rows of pods have a column NODE. Rows of workloads, namespaces and names are sums over the
nodes; P50 and P99 are the highest ones of a node. With --watch the table is redrawn on a terminal
until Ctrl-C; each table starts a process in the pod of each agent.`,
		Example: "  kubectl nodens top\n  kubectl nodens top --by workload --sort nxdomain --window 1h\n  kubectl nodens top --by name --topic failing -o json\n  kubectl nodens top --by upstream --watch",
	}, func(flags *pflag.FlagSet) { f.cluster = addCluster(flags) })
}

// command returns cmd with the flags f, and those of addAgents, which say which agents are asked.
func (f *topFlags) command(cmd *cobra.Command, addAgents func(*pflag.FlagSet)) *cobra.Command {
	flags := cmd.Flags()
	f.by, f.topic, f.window, f.sort = "pod", "queries", defaultTopWindow, "queries"
	cli.Enum(flags, &f.by, "by", "what a row is", "pod", "workload", "namespace", "name", "domain", "upstream", "bypass", "denied")
	cli.Enum(flags, &f.topic, "topic", "which names with --by name", "queries", "client", "waste", "failing", "slow")
	cli.Enum(flags, &f.window, "window", windowUsage, timeWindows...)
	cli.Enum(flags, &f.sort, "sort", "what the highest rows have most of", "queries", "nxdomain", "waste", "servfail", "upstream", "p99", "shed", "limited")
	flags.IntVar(&f.rows, "rows", defaultTopRows, "`number` of rows of the table; 0 for all")
	flags.BoolVarP(&f.watch, "watch", "w", f.watch, "redraw the table on a terminal until Ctrl-C")
	flags.DurationVar(&f.interval, "interval", f.interval, "`time` between two tables with --watch")
	addAgents(flags)
	f.output = cli.AddTableOutput(flags)
	cmd.Args = cli.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(flags.Changed("topic")); err != nil {
			return err
		}
		return f.run(cmd.Context(), cmd.OutOrStdout())
	}
	return cmd
}

// check returns an error if flags don't go together.
func (f *topFlags) check(topicGiven bool) error {
	orders := slices.Sorted(maps.Keys(clientOrders))
	switch f.by {
	case "name", "domain", topicBypass, topicDenied:
		orders = []string{"queries"}
	case "upstream":
		orders = slices.Sorted(maps.Keys(upstreamOrders))
		if f.window != defaultTopWindow {
			return cli.Usagef("--window does not go with --by upstream: its rates are of the last 60 to 90 seconds")
		}
	}
	switch {
	case topicGiven && f.by != "name":
		return cli.Usagef("--topic does not go with --by %s; give --by name", f.by)
	case f.interval < time.Second:
		return cli.Usagef("--interval %s is too short; give 1s or more", f.interval)
	case !slices.Contains(orders, f.sort):
		return cli.Usagef("--sort %s does not go with --by %s; give %s", f.sort, f.by, strings.Join(orders, ", "))
	}
	return nil
}

// topTable is what `top` shows.
type topTable struct {
	reply   any            // as JSON and YAML
	cluster report.Cluster // the agents that have answered; a node's own is one
	head    string         // the line above the table
	cells   [][]string     // the first row has the names of the columns
	gone    int            // columns that the terminal has no room for
	more    int            // rows that are not shown
	foot    string         // the line below the table
}

// run prints the table once, or again and again on a terminal until ctx ends.
func (f *topFlags) run(ctx context.Context, stdout io.Writer) error {
	ask := askClients
	switch f.by {
	case "name", "domain":
		ask = askNames
	case topicBypass, topicDenied:
		f.topic, ask = f.by, askNames
	case "upstream":
		ask = askUpstreams
	}
	print := func(stdout io.Writer) error {
		t, err := ask(ctx, f)
		if err != nil {
			return err
		}
		if err := f.output.Print(stdout, t.reply, func(w io.Writer) error { return f.print(w, t) }); err != nil {
			return err
		}
		return errUnanswered(&t.cluster)
	}
	if s := newScreen(stdout); s != nil && f.output.Table() {
		if !f.output.Wide() {
			f.width, _, _ = s.size()
		}
		if f.watch {
			return s.redraw(ctx, f.interval, print)
		}
	}
	return print(stdout)
}

// print writes t as text.
func (f *topFlags) print(out io.Writer, t *topTable) error {
	if t.cluster.Nodes > 0 {
		w := newAligner(out)
		fmt.Fprintf(w, "%s\n\n", t.head)
		writeCells(w, t.cells)
		if t.gone > 0 {
			fmt.Fprintf(w, "+%d columns with -o wide\n", t.gone)
		}
		printMore(w, t.more, "")
		fmt.Fprint(w, t.foot)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	printUnanswered(out, &t.cluster, f.output.Wide())
	return nil
}

// leastDecisive are the columns of clients that a narrow terminal does without, the least decisive first.
var leastDecisive = []string{"KERNEL", "P50", "SHED", "HIT", "UPSTREAM/s", "WASTE", "SERVFAIL", "NXDOMAIN"}

// Names in a table that does not fit the terminal have minCell characters at least.
const minCell = 16

// fit makes rows, of which the first has the names of the columns, fit a terminal of that width: it removes columns, and
// then cuts the long cells in the middle. It returns how many columns are gone. The width 0 is unlimited.
func fit(rows [][]string, width int) (gone int) {
	if width == 0 {
		return 0
	}
	for _, name := range leastDecisive {
		at := slices.Index(rows[0], name)
		if at < 0 || tableWidth(rows, minCell) <= width {
			continue
		}
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
		gone++
	}
	cell := width
	for cell > minCell && tableWidth(rows, cell) > width {
		cell--
	}
	for _, row := range rows {
		for i := range row {
			row[i] = cutMiddle(row[i], cell)
		}
	}
	return gone
}

// tableWidth returns the width of the table with cells of so many characters at most.
func tableWidth(rows [][]string, most int) (width int) {
	for column := range rows[0] {
		widest := 0
		for _, row := range rows {
			widest = max(widest, min(utf8.RuneCountInString(row[column]), most))
		}
		width += widest + 2
	}
	return width - 2
}

// cutMiddle returns text in at most so many characters, without its middle if it is longer.
func cutMiddle(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	half := (most - 1) / 2
	return string(runes[:most-1-half]) + "…" + string(runes[len(runes)-half:])
}
