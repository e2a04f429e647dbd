package netsetup

import (
	"context"
	"errors"
	"time"
)

const (
	// lockWait is how long one call waits for the xtables lock (iptables -w). iptables
	// takes whole seconds. A longer wait would let a call outlive Teardown.
	lockWait = time.Second

	// lockTries is how often a call is made while another program holds the xtables lock.
	// kube-proxy waits five seconds in all, too: reloading its rules on a large cluster
	// takes one to three.
	lockTries = 5
)

// retryLocked calls f, which waits for the xtables lock itself, until f returns something other
// than ErrLocked, ctx is done, or f was called lockTries times. It returns f's last error;
// ErrLocked if ctx ended a retry; ctx's error if f was never called.
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
