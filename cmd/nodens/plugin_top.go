package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

func newPluginTopCommand() *cobra.Command {
	f := &topFlags{by: "pod", topic: "queries", window: defaultTopWindow, sort: "queries"}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show which pods of a cluster ask the agents how much, and which names",
		Long: `Show which pods of a cluster ask the agents how much, and what they get, as nodens top does for one
node. Rows of pods have a column NODE. Rows of workloads, namespaces and names are sums over the
nodes; P50 and P99 are the highest ones of a node. With --watch the table is redrawn on a terminal
until Ctrl-C; each table starts a process in the pod of each agent.`,
		Example: "  kubectl nodens top\n  kubectl nodens top --by workload --sort nxdomain --window 1h\n  kubectl nodens top --by name --topic failing -o json\n  kubectl nodens top --by upstream --watch",
		Args:    cli.NoArgs,
	}
	flags := cmd.Flags()
	f.register(flags)
	f.registerWatch(flags, false, clusterTopInterval)
	cluster := addCluster(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(flags.Changed("topic")); err != nil {
			return err
		}
		run := f.runClusterClients
		switch f.by {
		case "name", "domain":
			run = f.runClusterNames
		case "upstream":
			run = f.runClusterUpstreams
		}
		ctx := cmd.Context()
		return f.show(ctx, output, cmd.OutOrStdout(), func(w io.Writer) error { return run(ctx, cluster, output, w) })
	}
	return cmd
}

func (f *topFlags) runClusterClients(ctx context.Context, cluster *kubectl.Cluster, output *cli.Output, stdout io.Writer) error {
	c, err := kubectl.Clients(ctx, cluster, f.by, f.window, clientOrders[f.sort])
	if err != nil {
		return err
	}
	if err := output.Print(stdout, c, func(w io.Writer) error { return f.printClusterClients(w, c, output.Wide()) }); err != nil {
		return err
	}
	return errUnanswered(&c.Cluster)
}

func (f *topFlags) printClusterClients(out io.Writer, c *report.ClusterClients, wide bool) error {
	if c.Nodes > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "%s: %.1f queries/s\n\n", nodesText(c.Nodes), c.QueriesPerSecond)
		format := newClientFormat(c.By, wide, c.Total.Limited, c.Clients, func(c *report.ClusterClient) *report.Client { return &c.Client })
		columns := format.columns()
		if c.By == "pod" {
			columns = append([]string{"NODE"}, columns...)
		} else {
			columns = append(columns[:1:1], append([]string{"NODES"}, columns[1:]...)...)
		}
		table := [][]string{columns}
		rows := shown(f, c.Clients)
		for i := range rows {
			row := &rows[i]
			columns := format.row(&row.Client, row.UpstreamPerSecond)
			if c.By == "pod" {
				columns = append([]string{row.Node}, columns...)
			} else {
				columns = append(columns[:1:1], append([]string{fmt.Sprint(row.Nodes)}, columns[1:]...)...)
			}
			table = append(table, columns)
		}
		f.printTable(w, table)
		printMore(w, len(c.Clients)-len(rows)+c.More)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	printUnanswered(out, &c.Cluster, wide)
	return nil
}

func (f *topFlags) runClusterNames(ctx context.Context, cluster *kubectl.Cluster, output *cli.Output, stdout io.Writer) error {
	n, err := kubectl.Names(ctx, cluster, f.topic, f.window)
	if err != nil {
		return err
	}
	if err := output.Print(stdout, n, func(w io.Writer) error { return f.printClusterNames(w, n, output.Wide()) }); err != nil {
		return err
	}
	return errUnanswered(&n.Cluster)
}

func (f *topFlags) printClusterNames(out io.Writer, n *report.ClusterNames, wide bool) error {
	if n.Nodes > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "%s: %d %s", nodesText(n.Nodes), n.Queries, nameTopics[n.Topic])
		if n.KernelSample > 0 {
			fmt.Fprintf(w, "; of the answers from the kernel, 1 in %d is sampled", n.KernelSample)
		}
		if n.Floor > 0 {
			fmt.Fprintf(w, "; counts may be too low by %d, and names without a row have at most as many", n.Floor)
		}
		f.printRows(w, n.Names, n.More, n.Topic, wide)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	printUnanswered(out, &n.Cluster, wide)
	return nil
}
