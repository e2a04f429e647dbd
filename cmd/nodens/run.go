package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// The exit codes.
const (
	exitOK    = 0
	exitError = 1 // the command failed
	exitUsage = 2 // the arguments are invalid, or an unknownError
)

// unknownError is the error of a command that asks how something is and gets no answer. The exit code tells node-problem-detector
// so.
type unknownError struct{ error }

// execute runs the command below root that args, without the program's name, call, and returns the exit code. It
// returns when the command is done or ctx has ended, which is no error.
func execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := cli.Execute(ctx, root, args)
	if err == nil {
		return exitOK
	}
	code := exitError
	if usage, unknown := (*cli.UsageError)(nil), (unknownError{}); errors.As(err, &usage) || errors.As(err, &unknown) {
		code = exitUsage
	}
	// Usage errors are mostly a user's, whose log has the default format.
	format := logFormat(cli.Normalize(root, args))
	if cmd == root && (code == exitError || format == options.LogJSON || format == options.LogCoreDNS) {
		logFailure(format, stderr, err)
	} else {
		lines := strings.Split(err.Error(), "\n")
		for i, line := range lines {
			lines[i] = report.Printable(strings.ReplaceAll(line, "\t", " "))
		}
		fmt.Fprintf(stderr, "%s: %s\n", root.CommandPath(), strings.Join(lines, "\n"))
	}
	return code
}

// errInterrupted: a signal has ended a command.
var errInterrupted = errors.New("interrupted")

// interruptible makes a command end with [errInterrupted] when its context does: a read from standard input or a pipe can't be ended.
func interruptible(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return abandon(cmd.Context(), 0, func() error { return run(cmd, args) })
	}
}

// abandon returns what run returns. When ctx has ended, it waits for run no longer than patience, and then returns errInterrupted.
func abandon(ctx context.Context, patience time.Duration, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		return errInterrupted
	}
}

// logFormat returns the last value of --log-format in normalized args, which may have errors.
func logFormat(args []string) string {
	const name = "--log-format"
	format := options.LogText
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			format = value
		} else if arg == name && i+1 < len(args) {
			format = args[i+1]
		}
	}
	return format
}

const rootLong = `nodens is a node-local DNS agent for Kubernetes. It runs once on each node and answers the
pods' queries from a cache and from its own view of the cluster. Without a command the agent runs.

Flags have one dash or two, and may follow arguments: -localip=ADDRESS is --localip ADDRESS.

Exit codes: 0 the command succeeded; 1 it failed, and the message says what to change;
2 a command, a flag or an argument is not valid.`

// newRootCommand returns the agent's command with all others below it.
func newRootCommand() *cobra.Command {
	f := newAgentFlags()
	root := &cobra.Command{
		Use:     "nodens [flags]",
		Short:   "Run the node-local DNS agent",
		Long:    rootLong,
		Example: "  nodens --conf /etc/coredns/Corefile --localip 169.254.20.10,10.96.0.10\n  nodens sample",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cli.UnknownCommand(cmd, args[0])
		},
		RunE: f.runE(func(ctx context.Context, f *agentFlags, stdout, stderr io.Writer) error {
			if f.version {
				_, err := fmt.Fprintln(stdout, f.Build)
				return err
			}
			return runAgent(ctx, f, stdout, stderr)
		}),
	}
	f.register(root.Flags())
	root.Flags().BoolVar(&f.version, "version", false, "print the version and exit; nodens version -o json prints it as JSON")
	cli.SetGroup(root.Flags().Lookup("version"), cli.GroupGeneral)
	root.AddCommand(
		newCheckCommand(), newPlanCommand(), newCleanupCommand(), newMigrateCommand(), newHostCommand(),
		newStatusCommand(), newTopCommand(), newExplainCommand(), newAdviseCommand(), newCacheCommand(), newReadyCommand(), newWaitCommand(), newSampleCommand(), newSampleNodeCommand(),
		newTailCommand(), newPolicyCommand(), newUpstreamsCommand(), newFlushCommand(),
		newCompletionCommand(), newVersionCommand(),
	)
	root.SetHelpCommand(cli.NewHelpCommand())
	cli.Prepare(root)
	return root
}

// newWaitCommand returns `nodens wait`, which does nothing until a signal arrives.
func newWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "wait",
		Short:   "Do nothing until a signal arrives",
		Long:    "Do nothing until SIGTERM or SIGINT arrives. A pod whose work is done runs it, so that Kubernetes\ndoes not start the pod again.",
		Example: "  nodens wait",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.PrintErrln("nodens: waiting for a signal")
			<-cmd.Context().Done()
			return nil
		},
	}
}
