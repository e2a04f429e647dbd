// These tests use idle, running and dispatch, which are not exported.

package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Inside the package: the pool is not exported.

// TestWorkerPool checks that idle workers get the next query, that their number is limited,
// and that none is left when the server has stopped.
func TestWorkerPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c := newWorkerPool(2)
		if c.dispatch(new(pendingQuery)) {
			t.Fatal("a query is taken by nobody")
		}
		got := make(chan *pendingQuery, 3)
		for range 3 {
			c.running.Go(func() { got <- c.waitForWork(ctx) })
		}
		synctest.Wait()
		if len(got) != 1 || <-got != nil {
			t.Error("more goroutines rest than may")
		}
		w := new(pendingQuery)
		if !c.dispatch(w) || <-got != w {
			t.Error("the query does not reach a goroutine that rests")
		}
		synctest.Wait()
		if len(c.idle) != 1 {
			t.Errorf("%d places are taken by one that rests", len(c.idle))
		}
		stop()
		c.running.Wait()
		if <-got != nil {
			t.Error("a query out of nothing")
		}
		if c.dispatch(w) {
			t.Error("a query is taken when all have left")
		}
	})
}

// TestWorkerPoolTrims checks that half of the idle workers end at each interval.
func TestWorkerPoolTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorkerPool(8)
		for range 8 {
			c.running.Go(func() { c.waitForWork(t.Context()) })
		}
		for _, want := range []int{8, 4, 2, 1, 0} {
			synctest.Wait()
			if n := len(c.idle); n != want {
				t.Errorf("%d rest, want %d", n, want)
			}
			time.Sleep(trimInterval)
		}
		c.running.Go(func() { c.waitForWork(t.Context()) })
		time.Sleep(2 * trimInterval)
		synctest.Wait()
		if n := len(c.idle); n != 0 {
			t.Errorf("%d that came later rest for ever", n)
		}
	})
}
