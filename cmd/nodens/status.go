package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

func newStatusCommand() *cobra.Command {
	s := new(adminSocket)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the agent on this node is",
		Long: `Show how the agent on this node is: since when it serves, its configuration, the last hand-over,
its view of the cluster, the rates of the last minute, its upstreams and their budgets, which
clients are limited, and the last warnings and errors of its log. It asks the agent through its
admin socket.

Exit codes: 0 the agent is ready and has no problem; 1 it has one, or no agent answers; 2 a flag
or an argument is not valid.`,
		Example: "  nodens status\n  nodens status -o json",
		Args:    cli.NoArgs,
	}
	s.register(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runStatus(cmd.Context(), s, output, cmd.OutOrStdout())
	}
	return cmd
}

// runStatus prints the status of the agent. The error says what is wrong with the agent.
func runStatus(ctx context.Context, socket *adminSocket, output *cli.Output, stdout io.Writer) error {
	var s report.Status
	if err := socket.ask(ctx, http.MethodGet, "/status", nil, &s); err != nil {
		return withFallback(ctx, err, interfaceAddrs())
	}
	err := output.Print(stdout, s, func(w io.Writer) error {
		printDiagnosis(ctx, w, socket, &s)
		return printStatus(w, &s, time.Now(), output.Wide())
	})
	if err == nil && !s.Healthy {
		err = fmt.Errorf("problems of the agent: %d", len(s.Problems))
	}
	return err
}

// printDiagnosis writes what an operator should know first. It asks the agent who asks for what; without a reply, the
// status has to do.
func printDiagnosis(ctx context.Context, w io.Writer, socket *adminSocket, s *report.Status) {
	var clients report.Clients
	var names report.Names
	_ = socket.ask(ctx, http.MethodGet, "/clients", url.Values{"by": {"workload"}, "window": {defaultTopWindow}}, &clients)
	_ = socket.ask(ctx, http.MethodGet, "/names", url.Values{"topic": {"queries"}, "window": {defaultTopWindow}}, &names)
	sentence, command := diagnose(s, &clients, &names)
	fmt.Fprintf(w, "%s\n  %s\n", sentence, command)
}

// printStatus writes s as text.
func printStatus(out io.Writer, s *report.Status, now time.Time, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("agent", "%s, version %s, instance %s", s.State(), s.Version, s.Instance)
	line("node", "%s", cmp.Or(s.Node, "unknown"))
	line("serving", "%s; started %s ago", s.Servers(agoAt(now)), since(now, s.Started))
	for _, p := range s.Problems {
		line("problem", "%s", strings.ReplaceAll(p, "\n", "\n\t"))
	}
	line("hand-over", "%s", s.Handover.Text(agoAt(now)))
	line("configuration", "%s, in force for %s", s.Config.Path, since(now, s.Config.Loaded))
	if r := s.Config.LastRejected; r != nil && !s.Config.Rejected { // else it is the problem
		line("last rejected", "%s ago: %s", since(now, r.Time), strings.ReplaceAll(r.Error, "\n", "\n\t"))
	}
	printView(line, s.View, now, wide)
	r := s.Rates
	line("queries", "%.1f/s in the last %.0f s; SERVFAIL %s, hits %s, in the kernel %s", r.QueriesPerSecond, r.Seconds, percent(r.ServfailShare), percent(r.HitRatio), percent(r.KernelShare))
	line("latency", "p50 %s, p99 %s", latency(r.P50Seconds), latency(r.P99Seconds))
	line("upstreams", "%d; %d down, %d suspect", s.Upstreams.Total, s.Upstreams.Down, s.Upstreams.Suspect)
	line("fail-open", "%s", s.FailOpen.Text())
	line("kernel path", "%s", kernelPathText(s.KernelPath))
	for _, l := range s.Limits {
		if wide || l.Share >= report.NearLimit {
			line("limit", "%s", limitText(&l))
		}
	}
	printFairShares(line, &s.FairShares, wide)
	if wide {
		line("hash", "%s", s.Config.Hash)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printFaults(out, withoutRejection(s), wide)
}

// printView writes the lines about the view with line.
func printView(line func(name, format string, args ...any), v *report.View, now time.Time, wide bool) {
	line("view", "%s", v.Text(wide))
	if text := gapsText(v, now); v != nil && (text != "" || wide) {
		line("gaps", "%s", cmp.Or(text, "none"))
	}
}

// since returns the time from then until now, in two units at most; "0s" if then is not set.
func since(now, then time.Time) string {
	if then.IsZero() {
		return "0s"
	}
	d := max(0, now.Sub(then))
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return d.Truncate(time.Second).String()
	}
}

// agoAt returns what writes the times until now.
func agoAt(now time.Time) report.Ago {
	return func(then time.Time) string { return since(now, then) }
}

func kernelPathText(k report.KernelPath) string {
	if !k.Active {
		return "off"
	}
	return fmt.Sprintf("active; answers on %d pod interfaces, observes %d", k.Answering, k.Watched)
}

// reloadRejected is the agent's message about an invalid configuration.
const reloadRejected = "reload: the old configuration stays"

// withoutRejection returns the faults of s without those that say only that the configuration in the files is invalid,
// which is the problem.
func withoutRejection(s *report.Status) []report.Fault {
	if !s.Config.Rejected {
		return s.Faults
	}
	return slices.DeleteFunc(slices.Clone(s.Faults), func(f report.Fault) bool { return f.Message == reloadRejected })
}

// printFaults writes the last faults: all of them if wide, else the newest five.
func printFaults(w io.Writer, faults []report.Fault, wide bool) error {
	const few = 5
	if len(faults) == 0 {
		return nil
	}
	if !wide && len(faults) > few {
		faults = faults[len(faults)-few:]
	}
	if _, err := fmt.Fprintln(w, "\nLast warnings and errors:"); err != nil {
		return err
	}
	for _, f := range faults {
		text := strings.TrimSpace(f.Message + " " + f.Fields)
		if _, err := fmt.Fprintf(w, "  %s %-5s %s\n", f.Time.Format(time.RFC3339), f.Level, text); err != nil {
			return err
		}
	}
	return nil
}

// percent returns share, which is from 0 to 1, as a percentage.
func percent(share float64) string {
	if share > 0 && share < 0.001 {
		return "<0.1%"
	}
	return fmt.Sprintf("%.1f%%", 100*share)
}

// latency returns the upper bound of a latency, "-" without one.
func latency(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return "≤" + time.Duration(seconds*float64(time.Second)).Round(time.Microsecond).String()
}
