package apiserver_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/test/apiserver"
)

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[int]int{}
		start := time.Now()
		err := apiserver.Parallel(t.Context(), 70, 7, func(_ context.Context, i int) error {
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

// TestParallelError holds that the first error is the one that comes back, that those
// under way are told, and that no more are begun.
func TestParallelError(t *testing.T) {
	sick := errors.New("sick")
	var begun atomic.Int64
	err := apiserver.Parallel(t.Context(), 1000, 4, func(ctx context.Context, i int) error {
		begun.Add(1)
		if i == 2 {
			return sick
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, sick) {
		t.Errorf("%v, want %v", err, sick)
	}
	if n := begun.Load(); n > 5 {
		t.Errorf("%d were begun, want no more than run at once and one", n)
	}
}

// TestParallelCancel holds that the end of the context is an error.
func TestParallelCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := apiserver.Parallel(ctx, 10, 1, func(ctx context.Context, _ int) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}
