package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

func newReadyCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Exit with 0 if the agent in this container serves and keeps the node",
		Long: `Exit with 0 if the agent in this container can take queries and keeps the node, else with 1. While
it compares itself with its predecessor (--handover-compare), it may still give the node back. The
command is the startup probe of the DaemonSet, so that a rollout waits for the comparison. It asks
through --handover-dir, because on the node's network the health and readiness endpoints may belong
to another agent. The agent's other flags are accepted and ignored.`,
		Example: "  nodens ready --handover-dir /var/lib/nodens",
		Args:    cli.NoArgs,
	}
	f.registerOnly(cmd.Flags(), "handover-dir")
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runReady(cmd.Context(), f.HandoverDir, output, cmd.OutOrStdout())
	}
	return cmd
}

// readiness is the result of `nodens ready`.
type readiness struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why not
}

// runReady returns nil if the agent that uses dir can take queries and keeps the node. Otherwise the error says why
// not; as JSON it is printed to stdout as well.
func runReady(ctx context.Context, dir string, output *cli.Output, stdout io.Writer) error {
	if dir == "" {
		return cli.Usagef("ready asks the agent through --handover-dir; give the directory that the agent has")
	}
	err := agentReady(ctx, dir)
	result := readiness{Ready: err == nil}
	if err != nil {
		result.Reason = err.Error()
	}
	printErr := output.Print(stdout, result, func(w io.Writer) (err error) {
		if result.Ready {
			_, err = fmt.Fprintln(w, "ready")
		}
		return err
	})
	return cmp.Or(err, printErr)
}
