package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestCrew: a goroutine that rests gets the next query, no more rest than may, and
// none does when the server has stopped.
func TestCrew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		c := newCrew(2)
		if c.hand(new(datagram)) {
			t.Fatal("a query is taken by nobody")
		}
		got := make(chan *datagram, 3)
		for range 3 {
			c.all.Go(func() { got <- c.rest(ctx) })
		}
		synctest.Wait()
		if len(got) != 1 || <-got != nil {
			t.Error("more goroutines rest than may")
		}
		w := new(datagram)
		if !c.hand(w) || <-got != w {
			t.Error("the query does not reach a goroutine that rests")
		}
		synctest.Wait()
		if len(c.idle) != 1 {
			t.Errorf("%d places are taken by one that rests", len(c.idle))
		}
		stop()
		c.all.Wait()
		if <-got != nil {
			t.Error("a query out of nothing")
		}
		if c.hand(w) {
			t.Error("a query is taken when all have left")
		}
	})
}

// TestCrewThins: those that have nothing to do leave, half of them at a time.
func TestCrewThins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(8)
		for range 8 {
			c.all.Go(func() { c.rest(t.Context()) })
		}
		for _, want := range []int{8, 4, 2, 1, 0} {
			synctest.Wait()
			if n := len(c.idle); n != want {
				t.Errorf("%d rest, want %d", n, want)
			}
			time.Sleep(thinning)
		}
		c.all.Go(func() { c.rest(t.Context()) })
		time.Sleep(2 * thinning)
		synctest.Wait()
		if n := len(c.idle); n != 0 {
			t.Errorf("%d that came later rest for ever", n)
		}
	})
}
