package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/netsetup"
)

// networkUnchanged replaces the plan where there is nothing to set up.
const networkUnchanged = "the node's network stays unchanged: there is no -localip, or interface and rules are both turned off\n"

// runPlan prints the node's network as the agent would set it up, with the rules of the
// backend that this node calls for. It changes nothing.
func runPlan(ctx context.Context, f *agentFlags, stdout, _ io.Writer) error {
	text := networkUnchanged
	if f.SetsUpNetwork() {
		var err error
		if text, err = netsetup.Preview(ctx, f.Network(slog.New(slog.DiscardHandler))); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(stdout, strings.TrimRight(text, "\n"))
	return err
}

// describeNetwork returns the node's network as text, without looking at the node.
func describeNetwork(opts *options.Agent) (string, error) {
	if !opts.SetsUpNetwork() {
		return networkUnchanged, nil
	}
	p, err := netsetup.NewPlan(opts.Network(slog.New(slog.DiscardHandler)))
	if err != nil {
		return "", err
	}
	return p.String(), nil
}
