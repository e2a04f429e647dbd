package share

import (
	"context"
	"sync"
	"time"
)

// Room is a number of slots for what is large and must stay in memory until a client has taken it. Goroutines wait for a
// slot. A client gets another one while it has fewer than are free, so that the next client finds one: a single client gets
// half of them, two clients get a third each. It is safe for concurrent use.
type Room struct {
	limit int

	mu    sync.Mutex
	used  Counts
	queue Queue[chan struct{}]
}

// NewRoom makes n slots, at least one.
func NewRoom(n int) *Room { return &Room{limit: max(n, 1)} }

// allowed reports whether c may have another slot; r is locked.
func (r *Room) allowed(c Client) bool {
	free := r.limit - r.used.Total()
	return free > 0 && r.used.Of(c) < free
}

// Take waits for a slot for c, which has a place until it has given the slot back, and returns ctx's error if that ends
// first.
func (r *Room) Take(ctx context.Context, c Client) error {
	r.mu.Lock()
	if r.allowed(c) {
		r.used.Add(c)
		r.mu.Unlock()
		return nil
	}
	w := &Waiter[chan struct{}]{Value: make(chan struct{})}
	r.queue.Push(c, w)
	r.mu.Unlock()
	select {
	case <-w.Value:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	waiting := r.queue.Remove(w)
	r.mu.Unlock()
	if !waiting { // the slot has come meanwhile
		r.Release(c)
	}
	return ctx.Err()
}

// Release returns a slot of c and gives the free ones to clients that wait.
func (r *Room) Release(c Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used.Remove(c)
	for passed := NoClient; r.queue.Len() > 0; {
		next := r.queue.Turn()
		switch {
		case r.allowed(next):
			r.used.Add(next)
			close(r.queue.Pop(time.Time{}).Value)
			passed = NoClient
		case next == passed: // nobody may have more
			return
		default:
			if passed == NoClient {
				passed = next
			}
			r.queue.Skip()
		}
	}
}

// InUse returns the number of slots in use.
func (r *Room) InUse() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used.Total()
}
