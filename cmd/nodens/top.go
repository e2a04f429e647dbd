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

	"github.com/nodens-dns/nodens/internal/cli"
)

const (
	// topInterval is the time between two tables of `nodens top` on a terminal, clusterTopInterval the one of
	// `kubectl nodens top`, which starts a process in the pod of each agent.
	topInterval        = 2 * time.Second
	clusterTopInterval = 5 * time.Second
	// defaultTopRows is the number of rows of a table.
	defaultTopRows = 20
)

// topFlags are the flags of `nodens top`.
type topFlags struct {
	socket                  adminSocket
	by, topic, window, sort string
	rows                    int
	watch                   bool
	interval                time.Duration
	width                   int // of the terminal; 0 is unlimited
}

// topTable is a reply that `nodens top` shows.
type topTable interface {
	// print writes a line about the node, and a row for each of the reply's.
	print(out io.Writer, f *topFlags, wide bool) error
	// reply returns the reply, as package report has it.
	reply() any
}

// topAsk asks the agent for a table, and sorts it.
type topAsk func(ctx context.Context, f *topFlags) (topTable, error)

// topTables are the values of --by.
var topTables = map[string]topAsk{
	"pod": askClients, "workload": askClients, "namespace": askClients, "name": askNames, "domain": askNames, "upstream": askUpstreams,
}

// check returns an error if flags don't go together.
func (f *topFlags) check(topicGiven bool) error {
	orders := slices.Sorted(maps.Keys(clientOrders))
	switch f.by {
	case "name", "domain":
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

// defaultTopWindow is the default of --window.
const defaultTopWindow = "1m"

func newTopCommand() *cobra.Command {
	f := &topFlags{by: "pod", topic: "queries", window: defaultTopWindow, sort: "queries"}
	cmd := &cobra.Command{
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
forwards to. On a terminal the table is redrawn until Ctrl-C, unless --watch=false is given. The
command asks the agent through its admin socket.`,
		Example: "  nodens top\n  nodens top --by workload --sort nxdomain --window 1h\n  nodens top --by name --topic failing\n  nodens top -o json",
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	f.register(flags)
	f.registerWatch(flags, true, topInterval)
	f.socket.register(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(flags.Changed("topic")); err != nil {
			return err
		}
		return runTop(cmd.Context(), f, output, cmd.OutOrStdout())
	}
	return cmd
}

// register adds the flags that say what the table has.
func (f *topFlags) register(flags *pflag.FlagSet) {
	cli.Enum(flags, "by", f.by, "what a row is", []string{"pod", "workload", "namespace", "name", "domain", "upstream"}, func(text string) { f.by = text })
	cli.Enum(flags, "topic", f.topic, "which names with --by name", []string{"queries", "client", "waste", "failing", "slow"}, func(text string) { f.topic = text })
	cli.Enum(flags, "window", f.window, "time that is counted: half of it to all of it, up to now", []string{"10s", "1m", "1h"}, func(text string) { f.window = text })
	cli.Enum(flags, "sort", f.sort, "what the highest rows have most of", []string{"queries", "nxdomain", "waste", "servfail", "upstream", "p99", "shed", "limited"},
		func(text string) { f.sort = text })
	flags.IntVar(&f.rows, "rows", defaultTopRows, "`number` of rows of the table; 0 for all")
}

// registerWatch adds the flags that say whether the table is redrawn.
func (f *topFlags) registerWatch(flags *pflag.FlagSet, watch bool, interval time.Duration) {
	flags.BoolVarP(&f.watch, "watch", "w", watch, "redraw the table on a terminal until Ctrl-C")
	flags.DurationVar(&f.interval, "interval", interval, "`time` between two tables with --watch")
}

// runTop prints the table once, or until ctx ends if stdout is a terminal.
func runTop(ctx context.Context, f *topFlags, output *cli.Output, stdout io.Writer) error {
	return f.show(ctx, output, stdout, func(stdout io.Writer) error {
		table, err := topTables[f.by](ctx, f)
		if err != nil {
			return err
		}
		return output.Print(stdout, table.reply(), func(w io.Writer) error { return table.print(w, f, output.Wide()) })
	})
}

// show calls print once, or again and again if stdout is a terminal whose table is redrawn.
func (f *topFlags) show(ctx context.Context, output *cli.Output, stdout io.Writer, print func(io.Writer) error) error {
	if s := newScreen(stdout); s != nil && output.Table() {
		if !output.Wide() {
			f.width, _, _ = s.size()
		}
		if f.watch {
			return s.redraw(ctx, f.interval, print)
		}
	}
	return print(stdout)
}

// leastDecisive are the columns of clients that a narrow terminal does without, the least decisive first.
var leastDecisive = []string{"KERNEL", "P50", "SHED", "HIT", "UPSTREAM/s", "WASTE", "SERVFAIL", "NXDOMAIN"}

// Names in a table that does not fit the terminal have minCell characters at least.
const minCell = 16

// fit makes rows, of which the first has the names of the columns, fit the terminal: it removes columns, and then cuts
// the long cells in the middle. It returns how many columns are gone.
func (f *topFlags) fit(rows [][]string) (gone int) {
	if f.width == 0 {
		return 0
	}
	for _, name := range leastDecisive {
		at := slices.Index(rows[0], name)
		if at < 0 || tableWidth(rows, minCell) <= f.width {
			continue
		}
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
		gone++
	}
	cell := f.width
	for cell > minCell && tableWidth(rows, cell) > f.width {
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

// shown returns as many of rows as the table shows.
func shown[T any](f *topFlags, rows []T) []T {
	if f.rows <= 0 {
		return rows
	}
	return rows[:min(f.rows, len(rows))]
}

// printMore writes how many rows are not shown.
func printMore(w io.Writer, more int) {
	if more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}
