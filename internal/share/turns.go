package share

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Turns is a number of slots for work that keeps a core busy and does not wait. Goroutines wait for a slot, and the
// clients take turns. It is safe for concurrent use.
type Turns struct {
	mu    sync.Mutex
	slots Slots[chan struct{}]
}

// NewTurns makes n slots, at least one.
func NewTurns(n int) *Turns { return &Turns{slots: NewSlots[chan struct{}](max(n, 1))} }

// Take waits for a slot for c, which has a place, and returns ctx's error if that ends first. A nil Turns has a slot for
// everybody.
func (t *Turns) Take(ctx context.Context, c Client) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	if t.slots.Try(c) {
		t.mu.Unlock()
		return nil
	}
	w := &Waiter[chan struct{}]{Value: make(chan struct{})}
	t.slots.Wait(c, w)
	t.mu.Unlock()
	select {
	case <-w.Value:
		// The goroutine that has passed the turn has made this one the next to run. Others, a preempted reader of UDP among
		// them, have waited for longer.
		runtime.Gosched()
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	waiting := t.slots.Cancel(w)
	t.mu.Unlock()
	if !waiting { // the slot has come meanwhile
		t.Pass(c)
	}
	return ctx.Err()
}

// Pass returns a slot of c and gives it to the next client.
func (t *Turns) Pass(c Client) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.Release(c)
	if next := t.slots.Next(time.Time{}); next != nil {
		close(next.Value)
	}
}
