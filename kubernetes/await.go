package kubernetes

import (
	"context"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Await is [Zone.Await] for the names of e.
func (e *External) Await(ctx context.Context, q *wire.Query) error { return nil }
