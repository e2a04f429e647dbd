package main

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// pluginExplain are the flags of `kubectl nodens explain`.
type pluginExplain struct {
	explainFlags
	node string
}

func newPluginExplainCommand() *cobra.Command {
	f := new(pluginExplain)
	cmd := &cobra.Command{
		Use:   "explain NAME [TYPE]",
		Short: "Show how the agent on a pod's node would answer a query, and why",
		Long: `Show how the agent on a pod's node would answer a query of the pod, and why, as nodens explain does
on the node. TYPE is A by default. Unless NAME ends with a dot, it shows the queries that the pod's
resolver sends. The command looks up the node of the pod, so it needs the right to get pods in the
pod's namespace; --node makes this unnecessary.`,
		Example: "  kubectl nodens explain www.example.com --from shop/web-7d4f-x2\n  kubectl nodens explain example.org. AAAA --node node-1",
		Args:    cli.Args(1, 2, "a name, and perhaps a record type"),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "`client`: NAMESPACE/NAME of a pod; with --node also an address, and without it the node itself")
	flags.StringVar(&f.node, "node", "", "`node` whose agent is asked; without it the pod's own")
	f.register(flags)
	cluster := addCluster(flags)
	output := cli.AddTableOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.setArgs(args)
		return f.run(cmd.Context(), cluster, output, cmd.OutOrStdout())
	}
	return cmd
}

// args returns the arguments for the agent's node.
func (f *pluginExplain) args() []string {
	args := []string{"explain"}
	for _, flag := range [][2]string{{"--from", f.from}, {"--server", f.server}, {"--ndots", f.ndots}} {
		if flag[1] != "" {
			args = append(args, flag[0], flag[1])
		}
	}
	return append(args, "--tcp="+strconv.FormatBool(f.tcp), "--dnssec="+strconv.FormatBool(f.dnssec), "--ask="+strconv.FormatBool(f.ask),
		"-o", "json", "--", f.name, f.qtype)
}

func (f *pluginExplain) run(ctx context.Context, cluster *kubectl.Cluster, output *cli.Output, stdout io.Writer) error {
	node := f.node
	if node == "" {
		namespace, pod, ok := strings.Cut(f.from, "/")
		if !ok {
			return cli.Usagef("no pod is given; give --from NAMESPACE/NAME, or --node")
		}
		var err error
		if node, err = cluster.NodeOf(ctx, namespace, pod); err != nil {
			return err
		}
	}
	var e *report.Explanation
	asked, err := kubectl.Ask(ctx, cluster, &kubectl.Question[report.Explanation]{
		Node: node, Args: f.args(),
		Serves: func(_, _ *report.Explanation) int { return 0 },
		Each:   func(_ string, reply *report.Explanation) { e = reply },
	})
	if err != nil {
		return err
	}
	if err := errUnanswered(&asked); err != nil {
		return err
	}
	return output.Print(stdout, e, func(w io.Writer) error { return printExplanation(w, e, output.Wide()) })
}
