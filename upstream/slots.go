package upstream

import (
	"context"
	"os"
	"time"
)

// slots holds one value for each use of something bounded.
type slots chan struct{}

// take waits until fewer than cap(s) values are taken.
func (s slots) take(ctx context.Context, until time.Time) error {
	select {
	case s <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case s <- struct{}{}:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) leave() { <-s }
