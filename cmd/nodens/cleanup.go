package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

func newCleanupCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what an agent, or NodeLocal DNSCache, has left on this node",
		Long: `Remove the interface, the addresses, the rules and the files that an agent, or NodeLocal
DNSCache, has left on this node, and the agent's lines from the node's resolv.conf. Stop the agent
first. Without --localip the command finds the addresses itself. It leaves an address that may be
another program's, prints it, and exits with 1.
The agent's other flags are accepted and ignored, so that the arguments of a DaemonSet can be given.`,
		Example: "  nodens cleanup --handover-dir /var/lib/nodens\n  nodens cleanup --localip 169.254.20.10 -o json",
		Args:    cli.NoArgs,
	}
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = f.runE(func(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
		return runCleanup(ctx, f, output, stdout)
	})
	f.registerOnly(cmd.Flags(), "localip", "setupinterface", "interfacename", "setupiptables", "netfilter",
		"health-port", "dns.port", "host-listen", "host-root", "handover-dir")
	return cmd
}
