package netsetup

import (
	"context"
	"errors"
	"time"
)

const (
	// lockWait is how long one call waits for the xtables lock (iptables -w). One
	// second is the shortest that iptables takes besides not at all; more would let
	// a call outlive Teardown. A filter calls again where more patience is due.
	lockWait = time.Second

	// lockTries is how often one call is made while another program holds the xtables
	// lock, each waiting lockWait. Five seconds in all is what kube-proxy allows itself
	// too: a full reload of its own rules on a large cluster takes one to three, and a
	// lock held for longer is better reported than waited for.
	lockTries = 5
)

// retryLocked calls f until it does not report a held lock, ctx is done, or lockTries is
// used up, and returns what f returned last, or that the lock was held if ctx cut the
// next try off; ctx's error if f was never called. f waits for the lock itself, so there
// is no pause here.
func retryLocked(ctx context.Context, f func() error) error {
	err := ctx.Err()
	for try := 0; try < lockTries && ctx.Err() == nil; try++ {
		locked := err
		if err = f(); !errors.Is(err, ErrLocked) {
			if locked != nil && ctx.Err() != nil && err != nil {
				return locked
			}
			break
		}
	}
	return err
}
