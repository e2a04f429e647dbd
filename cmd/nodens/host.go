package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/resolvconf"
)

// newHostCommand returns `nodens host` and the commands below it.
func newHostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Point this node's own look-ups to the agent, or back",
		Long: `Point this node's own look-ups to the agent, or back, or show where they go. The agent does the
same by itself with --host-resolver=auto.`,
		Example: "  nodens host install --host-listen 169.254.20.11\n  nodens host status --host-listen 169.254.20.11\n  nodens host remove",
	}
	return newGroup(cmd, "install, remove and status",
		newHostAction(&cobra.Command{
			Use:   "install",
			Short: "Point this node's look-ups to the agent, with its other servers behind",
			Long: `Put the addresses of --host-listen in front of this node's name servers: by a drop-in for
systemd-resolved or NetworkManager, or in the node's resolv.conf. Run it while the agent answers
there. Files of other programs stay as they are, and a second call changes nothing.`,
			Example: "  nodens host install --host-listen 169.254.20.11",
		}, func(ctx context.Context, host resolvconf.Host) ([]resolvconf.Change, error) { return host.Install(ctx) }),
		newHostAction(&cobra.Command{
			Use:   "remove",
			Short: "Restore this node's look-ups as they were without the agent",
			Long: `Remove what "nodens host install", or an agent with --host-resolver=auto, has written into this
node's files. Their other content stays as it is.`,
			Example: "  nodens host remove\n  nodens host remove -o json",
		}, func(ctx context.Context, host resolvconf.Host) ([]resolvconf.Change, error) { return host.Remove(ctx) }),
		newHostAction(&cobra.Command{
			Use:   "status",
			Short: "Show where this node's look-ups go",
			Long: `Show which program writes this node's resolv.conf, whether look-ups go to the agent first, the other
servers, and what keeps look-ups from the agent.

Exit codes: 0 look-ups go to the agent first; 1 they do not, or the files can't be read; 2 a flag or
an argument is not valid.`,
			Example: "  nodens host status --host-listen 169.254.20.11\n  nodens host status --host-listen 169.254.20.11 -o json",
		}, hostStatus),
	)
}

// hostAction is the work of a command below `nodens host`. It returns what it has changed.
type hostAction func(ctx context.Context, host resolvconf.Host) ([]resolvconf.Change, error)

// newHostAction completes a command below `nodens host`.
func newHostAction(cmd *cobra.Command, action hostAction) *cobra.Command {
	f := newAgentFlags()
	cmd.Args = cli.NoArgs
	f.registerOnly(cmd.Flags(), "host-listen", "host-root")
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = f.runE(func(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
		if runtime.GOOS != "linux" {
			return errors.New("nodes run Linux, and this machine does not")
		}
		changed, err := action(ctx, f.Host())
		s, readErr := f.Host().Read()
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		l := options.NewLookups(&s, changed)
		return errors.Join(output.Print(stdout, l, func(w io.Writer) error { return printLookups(w, l) }), err)
	})
	return cmd
}

func hostStatus(_ context.Context, host resolvconf.Host) ([]resolvconf.Change, error) {
	if len(host.Addrs) == 0 {
		return nil, errors.New("--host-listen: no address; give the agent's, such as 169.254.20.11")
	}
	s, err := host.Read()
	if err == nil && !s.Points {
		err = errors.New("the node's look-ups do not go to the agent first")
	}
	return nil, err
}

// plannedLookups returns where the node's look-ups go, and what the agent would write; nil without --host-listen.
func plannedLookups(f *agentFlags) (*report.Lookups, error) {
	if len(f.HostListen) == 0 || runtime.GOOS != "linux" {
		return nil, nil
	}
	s, err := f.Host().Read()
	if err != nil {
		return nil, fmt.Errorf("reading the node's name servers: %w; see --host-root", err)
	}
	var changes []resolvconf.Change
	if f.HostResolver == options.HostResolverAuto {
		if changes, err = s.Plan(); err != nil {
			return nil, err
		}
	}
	return options.NewLookups(&s, changes), nil
}

// printLookups writes l, which may be nil, as text.
func printLookups(w io.Writer, l *report.Lookups) error {
	if l == nil {
		return nil
	}
	first := "not first"
	if l.AgentFirst {
		first = "first"
	}
	lines := []string{
		"look-ups  " + l.Manager + ", " + l.File,
		"agent     " + first,
		"servers   " + cmp.Or(strings.Join(l.Servers, ", "), "none"),
	}
	for _, p := range l.Problems {
		lines = append(lines, "problem   "+p)
	}
	for _, c := range l.Changes {
		lines = append(lines, resolvconf.Change{Path: c.Path, Remove: c.Removed, Link: c.Link, Text: c.Text}.String())
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
