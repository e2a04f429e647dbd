package main

import (
	"context"
	"errors"
	"io"

	"github.com/nodens-dns/nodens/internal/handover"
)

// runReady returns nil if the agent in this container can take queries. It asks through
// -handover-dir, because on the node's network the health and readiness endpoints may be
// the addresses of another agent.
func runReady(ctx context.Context, f *agentFlags, _, _ io.Writer) error {
	if f.HandoverDir == "" {
		return errors.New("ready asks the agent through -handover-dir; set it as the agent has it")
	}
	return handover.Ready(ctx, f.HandoverDir)
}
