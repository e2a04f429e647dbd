package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/netsetup"
)

// networkUnchanged replaces the plan where there is nothing to set up.
const networkUnchanged = "the node's network stays unchanged: there is no --localip, or interface and rules are both turned off\n"

func newPlanCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the interface, addresses and rules that the agent would set up",
		Long: `Print the interface, the addresses and the rules that the agent would set up on this node, and
change nothing. The agent's other flags are accepted and ignored, so that the arguments of a
DaemonSet can be given.`,
		Example: "  nodens plan --localip 169.254.20.10,10.96.0.10",
		Args:    cli.NoArgs,
		RunE:    f.runE(runPlan),
	}
	f.registerOnly(cmd.Flags(), "localip", "setupinterface", "interfacename", "setupiptables", "netfilter",
		"external-interfaces", "health-port", "dns.port")
	return cmd
}

// runPlan prints the node's network as the agent would set it up, with the rules of the
// backend that this node calls for. It changes nothing.
func runPlan(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
	text := networkUnchanged
	if f.SetsUpNetwork() {
		d, err := netsetup.Preview(ctx, f.Network(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		text = d.String()
	}
	_, err := fmt.Fprintln(stdout, strings.TrimRight(text, "\n"))
	return err
}

// describeNetwork returns the node's network as text, without looking at the node.
func describeNetwork(opts *options.Agent) (string, error) {
	if !opts.SetsUpNetwork() {
		return networkUnchanged, nil
	}
	p, err := netsetup.NewPlan(opts.Network(slog.New(slog.DiscardHandler)))
	if err != nil {
		return "", err
	}
	return p.String(), nil
}
