package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/netsetup"
)

// networkUnchanged replaces the plan where there is nothing to set up.
const networkUnchanged = "the node's network stays unchanged: there is no --localip, or interface and rules are both turned off\n"

func newPlanCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the interface, addresses and rules that the agent sets up",
		Long: `Print the interface, the addresses and the rules that the agent sets up on this node, and change
nothing. Without flags it asks the running agent through its admin socket, and prints what that
agent keeps in place. With flags it prints what an agent with these flags would set up. The agent's
other flags are accepted and ignored, so that the arguments of a DaemonSet can be given.`,
		Example: "  nodens plan\n  nodens plan --localip 169.254.20.10,10.96.0.10\n  nodens plan --localip 169.254.20.10 -o json",
		Args:    cli.NoArgs,
	}
	f.registerOnly(cmd.Flags(), "localip", "setupinterface", "interfacename", "setupiptables", "netfilter",
		"external-interfaces", "health-port", "dns.port", "host-listen", "host-resolver", "host-root", "admin-socket", "handover-dir")
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = f.runE(func(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
		for name := range f.given {
			if !slices.Contains([]string{"admin-socket", "handover-dir", "output"}, name) { // which only say where to ask, and how to print
				return runPlan(ctx, f, output, stdout)
			}
		}
		return showPlan(ctx, &adminSocket{path: f.AdminSocket, handoverDir: f.HandoverDir}, output, stdout)
	})
	return cmd
}

// showPlan prints the node's network as the running agent keeps it in place.
func showPlan(ctx context.Context, socket *adminSocket, output *cli.Output, stdout io.Writer) error {
	var p report.Plan
	if err := socket.ask(ctx, http.MethodGet, "/plan", nil, &p); err != nil {
		return fmt.Errorf("%w; or give this command the agent's flags, such as --localip 169.254.20.10", err)
	}
	return output.Print(stdout, p, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "agent     running on %s, asked at %s\n", cmp.Or(p.Node, "this node"), socket.find())
		if err != nil {
			return err
		}
		return printNetwork(w, &p.Network)
	})
}

// runPlan prints the node's network as the agent would set it up, with the rules of the
// backend that this node calls for. It changes nothing.
func runPlan(ctx context.Context, f *agentFlags, output *cli.Output, stdout io.Writer) error {
	err := f.CheckHost()
	if err != nil {
		return err
	}
	var d netsetup.Description
	if f.SetsUpNetwork() {
		if d, err = netsetup.Preview(ctx, f.Network(slog.New(slog.DiscardHandler))); err != nil {
			return err
		}
	}
	n := options.NewNetwork(d)
	if n.Lookups, err = plannedLookups(f); err != nil {
		return err
	}
	return output.Print(stdout, n, func(w io.Writer) error { return printNetwork(w, &n) })
}

// printNetwork writes n as text.
func printNetwork(w io.Writer, n *report.Network) error {
	if n.Interface == "" && n.Backend == "" {
		if _, err := io.WriteString(w, networkUnchanged); err != nil {
			return err
		}
		return printLookups(w, n.Lookups)
	}
	d := netsetup.Description{
		Interface: n.Interface, External: n.ExternalInterfaces, DefaultRoutes: n.DefaultRoutes, NotExternal: n.OpenInterfaces,
		Backend: n.Backend, Reason: n.BackendReason, Blocked: n.Blocked, Rules: strings.Join(n.Rules, "\n"),
	}
	for _, text := range n.Addresses {
		a, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("the agent's reply is not valid: %w", err)
		}
		d.Addresses = append(d.Addresses, a)
	}
	if _, err := fmt.Fprintln(w, strings.TrimRight(d.String(), "\n")); err != nil {
		return err
	}
	return printLookups(w, n.Lookups)
}

// describeNetwork returns the node's network, without looking at the node; nil if it stays
// unchanged.
func describeNetwork(opts *options.Agent) (*netsetup.Description, error) {
	if !opts.SetsUpNetwork() {
		return nil, nil
	}
	p, err := netsetup.NewPlan(opts.Network(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	d := p.Describe()
	return &d, nil
}
