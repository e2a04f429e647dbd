package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
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
to another agent. The agent's other flags are accepted and ignored.

With --explain it asks the agent of this node through its admin socket, and prints what the
condition nodens.dev/DNSReady of the Node would say now, one problem a line: REASON: MESSAGE. With
--events it prints what only Events say. It is a custom plugin of node-problem-detector: the exit
codes are 0 no problem, 1 a problem, and 2 not known, because no agent answers.`,
		Example: "  nodens ready --handover-dir /var/lib/nodens\n  nodens ready --explain\n  nodens ready --explain --events -o json",
		Args:    cli.NoArgs,
	}
	f.registerOnly(cmd.Flags(), "handover-dir", "admin-socket")
	explain := cmd.Flags().Bool("explain", false, "print what keeps the condition nodens.dev/DNSReady from being True")
	events := cmd.Flags().Bool("events", false, "with --explain, print the problems that are only Events instead, such as a stale view, or rules that another program has changed")
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *explain:
			return runReadyExplain(cmd.Context(), &adminSocket{f.AdminSocket, f.HandoverDir}, *events, output, cmd.OutOrStdout())
		case *events:
			return cli.Usagef("--events goes with --explain")
		}
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

// readyExplanation is the result of `nodens ready --explain`.
type readyExplanation struct {
	// Status is OK, NonOK or Unknown, as node-problem-detector calls them.
	Status   string         `json:"status"`
	Problems []readyProblem `json:"problems"`
}

// readyProblem is a problem as a condition or an Event has it.
type readyProblem struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const (
	// explainTimeout bounds the question to the agent: node-problem-detector waits five seconds unless it is told otherwise.
	explainTimeout = 4 * time.Second
	// restoredShown is for how long rules that were restored are a problem: as long as a reason has one Event.
	restoredShown = 10 * time.Minute
)

// runReadyExplain prints the problems that make the condition False, or with events the others, of which only Events tell. It
// returns an error if there are any, which is an unknownError if the agent does not answer.
func runReadyExplain(ctx context.Context, socket *adminSocket, events bool, output *cli.Output, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	result := readyExplanation{Status: "OK", Problems: []readyProblem{}}
	var s report.Status
	err := socket.ask(ctx, http.MethodGet, "/status", nil, &s)
	if err != nil {
		result.Status, result.Problems = "Unknown", []readyProblem{{"Unknown", err.Error()}}
		err = unknownError{err}
	} else if result.Problems = readyProblems(&s, events, time.Now()); len(result.Problems) > 0 {
		result.Status = "NonOK"
		err = fmt.Errorf("problems of the agent: %d", len(result.Problems))
	}
	printErr := output.Print(stdout, result, func(w io.Writer) error {
		if len(result.Problems) == 0 && !events {
			result.Problems = []readyProblem{{report.ReasonDNSReady, report.MessageDNSReady}}
		}
		return printReadyProblems(w, result.Problems)
	})
	return cmp.Or(err, printErr)
}

// readyProblems returns the problems that runReadyExplain prints, in the order of s.
func readyProblems(s *report.Status, events bool, now time.Time) []readyProblem {
	list := []readyProblem{}
	for _, p := range s.Problems {
		if p.MakesUnready() != events {
			list = append(list, readyProblem{p.Reason(), p.Text})
		}
	}
	if last := s.Restored.Last; events && last != nil && now.Sub(*last) < restoredShown {
		list = append(list, readyProblem{report.ReasonRestored, "rules or addresses that another program had changed were restored at " + last.Format(time.RFC3339)})
	}
	return list
}

// printReadyProblems prints a line for each problem. node-problem-detector takes the first bytes of the output for the message.
func printReadyProblems(w io.Writer, problems []readyProblem) error {
	for _, p := range problems {
		if _, err := fmt.Fprintf(w, "%s: %s\n", p.Reason, report.Printable(p.Message)); err != nil {
			return err
		}
	}
	return nil
}
