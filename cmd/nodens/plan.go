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
		Example: "  nodens plan --localip 169.254.20.10,10.96.0.10\n  nodens plan --localip 169.254.20.10 -o json",
		Args:    cli.NoArgs,
	}
	f.registerOnly(cmd.Flags(), "localip", "setupinterface", "interfacename", "setupiptables", "netfilter",
		"external-interfaces", "health-port", "dns.port")
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = f.runE(func(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
		return runPlan(ctx, f, output, stdout)
	})
	return cmd
}

// planResult is the output of `nodens plan -o json`. Lists are never null.
type planResult struct {
	// Interface is the name of the dummy interface; "" if the agent adds none. Addresses have
	// prefix lengths.
	Interface string   `json:"interface"`
	Addresses []string `json:"addresses"`
	// ExternalInterfaces lead to hosts outside of the node; OpenInterfaces have default routes,
	// and are not external because pods may use them. DefaultRoutes says that the external
	// interfaces are those of the node's default routes, which are not known here.
	ExternalInterfaces []string `json:"externalInterfaces"`
	OpenInterfaces     []string `json:"openInterfaces"`
	DefaultRoutes      bool     `json:"defaultRoutes"`
	// Backend is the rule backend; "" if there are no rules. Rules are the lines of the rules in
	// its syntax.
	Backend string   `json:"backend"`
	Rules   []string `json:"rules"`
}

// newPlanResult returns d as a result.
func newPlanResult(d netsetup.Description) *planResult {
	r := &planResult{
		Interface: d.Interface, Addresses: []string{}, ExternalInterfaces: append([]string{}, d.External...),
		OpenInterfaces: append([]string{}, d.NotExternal...), DefaultRoutes: d.DefaultRoutes, Backend: d.Backend, Rules: []string{},
	}
	for _, a := range d.Addresses {
		r.Addresses = append(r.Addresses, a.String())
	}
	if d.Rules != "" {
		r.Rules = strings.Split(d.Rules, "\n")
	}
	return r
}

// runPlan prints the node's network as the agent would set it up, with the rules of the
// backend that this node calls for. It changes nothing.
func runPlan(ctx context.Context, f *agentFlags, output *cli.Output, stdout io.Writer) error {
	text := networkUnchanged
	var d netsetup.Description
	if f.SetsUpNetwork() {
		var err error
		if d, err = netsetup.Preview(ctx, f.Network(slog.New(slog.DiscardHandler))); err != nil {
			return err
		}
		text = d.String()
	}
	return output.Print(stdout, newPlanResult(d), func(w io.Writer) error {
		_, err := fmt.Fprintln(w, strings.TrimRight(text, "\n"))
		return err
	})
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
