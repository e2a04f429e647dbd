package netsetup

import "context"

// watchEvents is a stub.
func watchEvents(ctx context.Context) <-chan struct{} { return nil }
