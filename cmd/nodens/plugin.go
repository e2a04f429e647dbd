package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// pluginName is the name of the program as a plugin of kubectl.
const pluginName = "kubectl-nodens"

// isPlugin reports whether the program at path was started as a plugin of kubectl.
func isPlugin(path string) bool {
	name := path[strings.LastIndexAny(path, `/\`)+1:]
	if i := len(name) - len(".exe"); i > 0 && strings.EqualFold(name[i:], ".exe") {
		name = name[:i]
	}
	return name == pluginName
}

const pluginLong = `Show what the agents of a whole cluster do. It lists the agents' pods with kubectl get, runs nodens
in them with kubectl exec, and puts the replies together. So it needs kubectl, and the right to
exec in these pods, which is root on the nodes.

It asks 16 nodes at a time, and gives each agent five seconds, or --timeout. Agents without a reply
are named, and the rest is shown. During an upgrade a node with two agents counts once.

Exit codes: 0 the command succeeded; 1 it failed, or no agent answered; 2 a command, a flag or an
argument is not valid.`

// newPluginCommand returns the command of the plugin with all others below it.
func newPluginCommand() *cobra.Command {
	root := &cobra.Command{
		Use:         pluginName,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nodens"},
		Short:       "Show what the agents of a whole cluster do",
		Long:        pluginLong,
		Example:     "  kubectl nodens status\n  kubectl nodens top --by workload --sort nxdomain",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cli.UnknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newPluginStatusCommand(), newPluginTopCommand(), newPluginAdviseCommand(), newPluginExplainCommand(), newPluginPolicyCommand(), newPluginTailCommand(), newVersionCommand())
	help := cli.NewHelpCommand()
	help.Example = "  kubectl nodens help top"
	root.SetHelpCommand(help)
	cli.Prepare(root)
	return root
}

// The pods of the agents in the shipped manifests and the chart.
const (
	agentNamespace = "kube-system"
	agentSelector  = "k8s-app=node-local-dns"
)

// addCluster adds the flags that select the cluster and the agents' pods.
func addCluster(flags *pflag.FlagSet) *kubectl.Cluster {
	c := new(kubectl.Cluster)
	flags.StringVar(&c.Context, "context", "", "`context` of the kubeconfig; without it the current one")
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "`file` for kubectl; without it $KUBECONFIG, else ~/.kube/config")
	flags.StringVarP(&c.Namespace, "namespace", "n", agentNamespace, "`namespace` of the agents' pods")
	flags.StringVarP(&c.Selector, "selector", "l", agentSelector, "`labels` of the agents' pods")
	flags.DurationVar(&c.Timeout, "timeout", kubectl.DefaultTimeout, "`duration` that each agent has to reply")
	for _, name := range []string{"context", "kubeconfig", "namespace", "selector", "timeout"} {
		cli.SetGroup(flags.Lookup(name), "Cluster")
	}
	return c
}

// printCluster prints reply, of which c is a part: as text with table, unless no node is known, and who has not answered.
func printCluster(out io.Writer, output *cli.Output, reply any, c *report.Cluster, table func(io.Writer) error) error {
	return output.Print(out, reply, func(w io.Writer) (err error) {
		if c.Nodes > 0 {
			err = table(w)
		}
		printUnanswered(w, c, output.Wide())
		return err
	})
}

// fewUnanswered is the number of agents without a reply that a table names.
const fewUnanswered = 20

// printUnanswered writes which agents have not answered: the first few of them, or all.
func printUnanswered(w io.Writer, c *report.Cluster, all bool) {
	list := c.Unanswered
	if len(list) > fewUnanswered && !all {
		list = list[:fewUnanswered]
	}
	for _, u := range list {
		fmt.Fprintf(w, "not shown: %s\n", unansweredText(&u))
	}
	if n := len(c.Unanswered) - len(list); n > 0 {
		fmt.Fprintf(w, "not shown: %d more agents; -o wide names all\n", n)
	}
}

func unansweredText(u *report.Unanswered) string {
	if u.Node == "" {
		return fmt.Sprintf("pod %s: %s", u.Pod, u.Reason)
	}
	return fmt.Sprintf("node %s, pod %s: %s", u.Node, u.Pod, u.Reason)
}

// errUnanswered is an error if no agent has answered; the first one's reason stands for the others'.
func errUnanswered(c *report.Cluster) error {
	if c.Nodes > 0 {
		return nil
	}
	if len(c.Unanswered) == 0 {
		return errors.New("no agent has answered")
	}
	return fmt.Errorf("no agent has answered; %s", unansweredText(&c.Unanswered[0]))
}

// nodesText returns a number of nodes in words.
func nodesText(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
