package reflector

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The back-off between requests to an API server that fails. Each pause is lengthened at
// random by up to its own length, so that the nodes of a cluster don't retry in step. At
// the longest pause, 5,000 nodes make under 200 requests a second per resource. While the server can't be reached, they
// also try as [probePause] says.
const (
	minBackoff = 800 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// Backoff returns the pause before the next request to an API server, after a failure that
// failed others came before. first is the pause to begin with, 0 is 800 ms. The pauses are
// random and grow to 30 to 60 s. They are at least as long as err, the server's reply, asks
// for, but for that reason not longer than 30 s.
func Backoff(first time.Duration, failed int, err error) time.Duration {
	return max(backoff(firstBackoff(first), failed), retryAfter(err))
}

// firstBackoff replaces 0 by the default.
func firstBackoff(first time.Duration) time.Duration {
	if first == 0 {
		return minBackoff
	}
	return first
}

// backoff returns the pause after a failure that failed others came before.
func backoff(first time.Duration, failed int) time.Duration {
	if failed == 0 {
		return rand.N(first)
	}
	d := first
	for i := 1; i < failed && d < maxBackoff; i++ {
		d *= 2
	}
	d = min(d, maxBackoff)
	return d + rand.N(d)
}

// retryAfter returns the delay that the server asks for, at most maxBackoff.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(max(seconds, 0))*time.Second, maxBackoff)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
