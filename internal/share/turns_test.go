package share_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/nodens-dns/nodens/internal/share"
)

// TestTurns: no more than the slots are in use, and of those that wait the clients take turns.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := share.NewTurns(1)
		if err := turns.Take(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		var order []share.Client
		done := make(chan struct{})
		for _, c := range []share.Client{1, 1, 1, 2} {
			go func() {
				if err := turns.Take(t.Context(), c); err != nil {
					t.Error(err)
				}
				order = append(order, c)
				turns.Pass(c)
				done <- struct{}{}
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Fatalf("%v have a turn while it is taken", order)
		}
		turns.Pass(1)
		for range 4 {
			<-done
		}
		if order[0] != 1 || order[1] != 2 {
			t.Errorf("the order is %v, want client 2 behind one query of client 1", order)
		}
	})
}

// TestTurnsEnd: a goroutine whose context ends waits no longer, and its turn is not lost.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, room := share.NewTurns(1), share.NewRoom(2)
		for name, l := range map[string]struct {
			take func(context.Context, share.Client) error
			pass func(share.Client)
		}{"turns": {turns.Take, turns.Pass}, "room": {room.Take, room.Release}} {
			if err := l.take(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error)
			go func() { result <- l.take(ctx, 1) }()
			synctest.Wait()
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error %v", name, err)
			}
			l.pass(1)
			if err := l.take(t.Context(), 2); err != nil {
				t.Errorf("%s: the next one: %v", name, err)
			}
			l.pass(2)
		}
	})
	var none *share.Turns
	if err := none.Take(t.Context(), 1); err != nil {
		t.Error(err)
	}
	none.Pass(1)
}

// TestRoom: one client gets half of the room, and the next one finds some at once. What waits gets the room that becomes
// free.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 8
		room := share.NewRoom(n)
		got := make(chan share.Client, 2*n)
		for range n {
			go func() {
				if room.Take(t.Context(), 1) == nil {
					got <- 1
				}
			}()
		}
		synctest.Wait()
		if len(got) != n/2 || room.InUse() != n/2 {
			t.Fatalf("one client has %d of %d", len(got), n)
		}
		if err := room.Take(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		room.Release(2)
		for range n / 2 {
			room.Release(<-got)
			synctest.Wait()
		}
		if len(got) != n/2 {
			t.Fatalf("%d of those that waited have room, want %d", len(got), n/2)
		}
		for range n / 2 {
			room.Release(<-got)
		}
		if n := room.InUse(); n != 0 {
			t.Errorf("%d in use at the end", n)
		}
	})
}
