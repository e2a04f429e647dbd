package main

import (
	"context"

	"github.com/nodens-dns/nodens/internal/handover"
)

// agentReady returns nil if the agent that uses dir can take queries and keeps the node.
func agentReady(ctx context.Context, dir string) error { return handover.Ready(ctx, dir) }
