package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
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

func newPluginStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the agents of a cluster are",
		Long: `Show how the agents of a cluster are, one in a row: who serves the node and since when, the rates of
the last minute, the upstreams that are down, and why an agent is not healthy.

Exit codes: 0 all agents are ready and have no problem; 1 one of them has, or does not answer; 2 a
flag or an argument is not valid.`,
		Example: "  kubectl nodens status\n  kubectl nodens status --context production -o json",
		Args:    cli.NoArgs,
	}
	cluster := addCluster(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := kubectl.Status(cmd.Context(), cluster)
		if err != nil {
			return err
		}
		err = printCluster(cmd.OutOrStdout(), output, s, &s.Cluster, func(w io.Writer) error {
			return printTable(w, statusColumns(agoAt(time.Now()), output.Wide()), s.Agents, 0, "")
		})
		return cmp.Or(err, statusError(s))
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
		// Without a reply about who asks for what, the status has to do.
		var clients report.Clients
		var names report.Names
		_ = socket.ask(ctx, http.MethodGet, "/clients", url.Values{"by": {"workload"}, "window": {defaultTopWindow}}, &clients)
		_ = socket.ask(ctx, http.MethodGet, "/names", url.Values{"topic": {"queries"}, "window": {defaultTopWindow}}, &names)
		sentence, command := diagnose(&s, &clients, &names)
		fmt.Fprintf(w, "%s\n  %s\n", sentence, command)
		return printStatus(w, &s, time.Now(), output.Wide())
	})
	if err == nil && !s.Healthy {
		err = fmt.Errorf("problems of the agent: %d", len(s.Problems))
	}
	return err
}

// joined returns the problems in one line, without what to do: a table has a line for each node, which would all say the same.
func joined(problems []report.Problem) string {
	var list []string
	for _, p := range problems {
		list = append(list, p.Text)
	}
	return strings.Join(list, "; ")
}

// printStatus writes s as text.
func printStatus(out io.Writer, s *report.Status, now time.Time, wide bool) error {
	w := newAligner(out)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("agent", "%s, version %s, instance %s", s.State(), s.Version, s.Instance)
	line("node", "%s", cmp.Or(s.Node, "unknown"))
	line("serving", "%s; started %s ago", s.Servers(agoAt(now)), since(now, s.Started))
	for _, p := range s.Problems {
		line("problem", "%s", strings.ReplaceAll(p.String(), "\n", "\n\t"))
	}
	line("hand-over", "%s", s.Handover.Text(agoAt(now)))
	line("configuration", "%s, in force for %s", s.Config.Path, since(now, s.Config.Loaded))
	if r := s.Config.LastRejected; r != nil && !s.Config.Rejected { // else it is the problem
		line("last rejected", "%s ago: %s", since(now, r.Time), strings.ReplaceAll(r.Error, "\n", "\n\t"))
	}
	line("view", "%s", s.View.Text(wide))
	if gaps := gapsText(s.View, now, wide); gaps != "" {
		line("gaps", "%s", gaps)
	}
	r := s.Rates
	line("queries", "%.1f/s in the last %.0f s; SERVFAIL %s, hits %s, in the kernel %s", r.QueriesPerSecond, r.Seconds, percent(r.ServfailShare), percent(r.HitRatio), percent(r.KernelShare))
	line("latency", "p50 %s, p99 %s", latency(r.P50Seconds), latency(r.P99Seconds))
	line("upstreams", "%d; %d down, %d suspect", s.Upstreams.Total, s.Upstreams.Down, s.Upstreams.Suspect)
	line("fail-open", "%s", s.FailOpen.Text())
	line("kernel path", "%s", kernelPathText(s.KernelPath))
	printBypass(line, &s.Bypass)
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
	return printFaults(out, s, wide)
}

// printBypass writes whether packets to other DNS servers are counted; nothing without --bypass=count.
func printBypass(line func(name, format string, args ...any), b *report.Bypass) {
	switch {
	case b.Counted:
		line("bypass", "%d packets of pods to other DNS servers", b.Packets)
	case b.Reason != "":
		line("bypass", "not seen: %s", b.Reason)
	}
}

// statusError says what is wrong with the agents of a cluster; nil for nothing.
func statusError(s *report.ClusterStatus) error {
	if s.Healthy {
		return nil
	}
	if err := errUnanswered(&s.Cluster); err != nil {
		return err
	}
	sick := 0
	for i := range s.Agents {
		if !s.Agents[i].Healthy {
			sick++
		}
	}
	var text []string
	for _, part := range []struct {
		n            int
		one, several string
	}{{sick, "has a problem", "have a problem"}, {len(s.Unanswered), "has not answered", "have not answered"}} {
		switch {
		case part.n == 1:
			text = append(text, "1 agent "+part.one)
		case part.n > 1:
			text = append(text, fmt.Sprintf("%d agents %s", part.n, part.several))
		}
	}
	return errors.New(strings.Join(text, "; "))
}

func statusColumns(ago report.Ago, wide bool) []column[report.Status] {
	type row = report.Status
	return slices.Concat(
		[]column[row]{
			{"NODE", func(s *row) string { return cmp.Or(s.Node, "unknown") }},
			{"STATE", (*row).State},
			{"SERVING", func(s *row) string { return s.Servers(ago) }},
			{"VERSION", func(s *row) string { return s.Version }},
			{"QPS", func(s *row) string { return tenths(s.Rates.QueriesPerSecond) }},
			{"HIT", func(s *row) string { return percent(s.Rates.HitRatio) }},
			{"KERNEL", func(s *row) string { return percent(s.Rates.KernelShare) }},
			{"SERVFAIL", func(s *row) string { return percent(s.Rates.ServfailShare) }},
			{"P50", func(s *row) string { return latency(s.Rates.P50Seconds) }},
			{"P99", func(s *row) string { return latency(s.Rates.P99Seconds) }},
			{"UPSTREAMS", func(s *row) string {
				text := fmt.Sprint(s.Upstreams.Total)
				if s.Upstreams.Down > 0 {
					text += fmt.Sprintf(", %d down", s.Upstreams.Down)
				}
				if s.Upstreams.Suspect > 0 {
					text += fmt.Sprintf(", %d suspect", s.Upstreams.Suspect)
				}
				return text
			}},
			{"PROBLEM", func(s *row) string { return cmp.Or(joined(s.Problems), "-") }},
		},
		when(wide,
			column[row]{"INSTANCE", func(s *row) string { return s.Instance }},
			column[row]{"HAND-OVER", func(s *row) string { return s.Handover.Text(ago) }},
			column[row]{"FAIL-OPEN", func(s *row) string { return s.FailOpen.Text() }},
			column[row]{"VIEW", func(s *row) string { return s.View.Text(false) }},
		),
	)
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

// printFaults writes the last faults: all of them if wide, else the newest five.
func printFaults(w io.Writer, s *report.Status, wide bool) error {
	const few = 5
	// That the configuration in the files is invalid is a problem already.
	faults := slices.DeleteFunc(slices.Clone(s.Faults), func(f report.Fault) bool {
		return s.Config.Rejected && f.Message == "reload: the old configuration stays"
	})
	if len(faults) == 0 {
		return nil
	}
	if !wide && len(faults) > few {
		faults = faults[len(faults)-few:]
	}
	_, err := fmt.Fprintln(w, "\nLast warnings and errors:")
	for _, f := range faults {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s %-5s %s\n", f.Time.Format(time.RFC3339), f.Level, strings.TrimSpace(f.Message+" "+f.Fields))
		}
	}
	return err
}

func kernelPathText(k report.KernelPath) string {
	if !k.Active {
		return "off"
	}
	return fmt.Sprintf("active; answers on %d pod interfaces, observes %d", k.Answering, k.Watched)
}

// gapsText says what the view could not show; "" without a view, and for nothing unless wide.
func gapsText(v *report.View, now time.Time, wide bool) string {
	if v == nil {
		return ""
	}
	g := v.Gaps
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if len(g.Failing) > 0 {
		parts = append(parts, failingText(v))
	}
	if len(g.Unlisted) > 0 {
		add("no list yet of %s", strings.Join(g.Unlisted, ", "))
	}
	if g.LastRelist != nil {
		add("listed again %d times, last %s ago", g.Relists, since(now, *g.LastRelist))
	}
	if g.LastSetBack != nil {
		add("resourceVersions of the API server set back %d times, last %s ago", g.SetBacks, since(now, *g.LastSetBack))
	}
	if s := g.LastSilence; s != nil {
		add("API server silent %d times, last for %.0f s until %s ago", g.Silences, s.Seconds, since(now, s.End))
	}
	if g.Unreadable > 0 {
		add("%d unreadable objects", g.Unreadable)
	}
	if wide && len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "; ")
}

// failingText says which requests to the API server fail, and why.
func failingText(v *report.View) string {
	text := "requests for " + strings.Join(v.Gaps.Failing, ", ") + " fail"
	if v.Error != "" {
		text += ": " + v.Error
	}
	if v.Fix != "" {
		text += " (" + v.Fix + ")"
	}
	return text
}

// limitText says how much of a limit is in use.
func limitText(l *report.Limit) string {
	used, bound := fmt.Sprint(l.Used), fmt.Sprint(l.Bound)
	if l.Unit == "bytes" {
		used, bound = fmt.Sprintf("%.1f MiB", float64(l.Used)/(1<<20)), fmt.Sprintf("%.1f MiB", float64(l.Bound)/(1<<20))
	}
	text := fmt.Sprintf("%s: %s of %s (%.0f%%)", l.Name, used, bound, 100*l.Share)
	if l.Of != "" {
		text += ", at " + l.Of
	}
	return text
}

// printFairShares writes the limited clients, the budgets, and who loses a place to wait in first.
func printFairShares(line func(name, format string, args ...any), f *report.FairShares, wide bool) {
	const few = 3
	limited := f.Limited
	if !wide {
		limited = firstRows(limited, few)
	}
	for i := range limited {
		line("limited", "%s: %s", limited[i].Label(), limited[i].Text(f.Seconds))
	}
	if more := len(f.Limited) - len(limited) + f.MoreLimited; more > 0 {
		line("limited", "and %d more clients", more)
	}
	for i := range f.Budgets {
		b := &f.Budgets[i]
		text := b.Text()
		if len(b.Clients) > 0 {
			text += ", most of " + waitingText(b.Clients)
		}
		line("budget", "%s: %s", b.To, text)
	}
	if len(f.Waiting) > 0 {
		line("shed next", "%s", waitingText(f.Waiting))
	}
}

// waitingText returns the clients with their numbers of waiting queries.
func waitingText(list []report.WaitingClient) string {
	const few = 3
	var parts []string
	for _, c := range firstRows(list, few) {
		parts = append(parts, c.Text())
	}
	return strings.Join(parts, ", ")
}
