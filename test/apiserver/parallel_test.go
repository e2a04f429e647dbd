package objects

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[int]int{}
		start := time.Now()
		err := runParallel(t.Context(), 70, 7, func(_ context.Context, i int) error {
			mu.Lock()
			seen[i]++
			mu.Unlock()
			time.Sleep(time.Second)
			return nil
		})
		if err != nil || len(seen) != 70 {
			t.Fatalf("%d of 70 were called: %v", len(seen), err)
		}
		for i, n := range seen {
			if n != 1 {
				t.Errorf("%d was called %d times", i, n)
			}
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("seventy seconds' work took seven at once %v, want 10s", d)
		}
	})
}

// TestRunParallelError holds that the first error is the one that comes back, that those
// under way are told, and that no more are begun.
func TestRunParallelError(t *testing.T) {
	sick := errors.New("sick")
	var begun atomic.Int64
	err := runParallel(t.Context(), 1000, 4, func(ctx context.Context, i int) error {
		begun.Add(1)
		if i == 2 {
			return sick
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, sick) {
		t.Errorf("each: %v, want %v", err, sick)
	}
	if n := begun.Load(); n > 5 {
		t.Errorf("%d were begun, want no more than run at once and one", n)
	}
}

// TestRunParallelCancel holds that the end of the context is an error.
func TestRunParallelCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := runParallel(ctx, 10, 1, func(ctx context.Context, _ int) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("each: %v, want %v", err, context.Canceled)
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := until(t.Context(), start.Add(time.Hour)); err != nil || time.Since(start) != time.Hour {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if err := until(t.Context(), start); err != nil || time.Since(start) != time.Hour {
			t.Errorf("what has passed is waited for: %v, %v", time.Since(start), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := until(ctx, start.Add(2*time.Hour)); err == nil {
			t.Error("the end of the context is no error")
		}
	})
}
