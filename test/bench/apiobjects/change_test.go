package apiobjects

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

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
