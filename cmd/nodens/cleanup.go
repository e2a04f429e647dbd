package main

import (
	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

func newCleanupCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what an agent, or NodeLocal DNSCache, has left on this node",
		Long: `Remove the interface, the addresses, the rules and the files that an agent, or NodeLocal
DNSCache, has left on this node. Stop the agent first. The agent's other flags are accepted and
ignored, so that the arguments of a DaemonSet can be given.`,
		Example: "  nodens cleanup --localip 169.254.20.10 --handover-dir /var/lib/nodens",
		Args:    cli.NoArgs,
		RunE:    f.runE(runCleanup),
	}
	f.registerOnly(cmd.Flags(), "localip", "setupinterface", "interfacename", "setupiptables", "netfilter",
		"health-port", "dns.port", "handover-dir")
	return cmd
}
