package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

// limiter counts the exchanges in flight, enforces max_concurrent, and lets Close wait for
// them. A WaitGroup can't do that because its Add must not run concurrently with Wait.
type limiter struct {
	mu     sync.Mutex
	active int
	limit  int                          // max_concurrent; 0 means no limit
	slots  share.Slots[chan<- struct{}] // divides limit among clients
	closed bool
	idle   chan struct{} // closed once the limiter is closed and active is 0
}

// acquire lets the exchange of from begin; it waits for the other exchanges of max_concurrent if it may.
func (p *Pool) acquire(ctx context.Context, from *From) error {
	err := p.limiter.acquire(from.Client)
	if !errors.Is(err, ErrTooMany) {
		return err
	}
	if from.urgency() == forClient {
		err = p.awaitSlot(ctx, from.Client)
	}
	if errors.Is(err, ErrTooMany) {
		p.rejectedCount.Add(1)
	}
	return err
}

// awaitSlot waits for a slot of c, for at most the read timeout.
func (p *Pool) awaitSlot(ctx context.Context, c share.Client) error {
	granted := make(chan struct{}, 1)
	w := &share.Waiter[chan<- struct{}]{Value: granted, Late: time.Now().Add(p.cfg.ReadTimeout / inOrderPart)}
	if err := p.limiter.wait(c, w); err != nil {
		return err
	}
	timer := time.NewTimer(p.cfg.ReadTimeout)
	defer timer.Stop()
	var err error
	select {
	case <-granted:
		return nil
	case <-timer.C:
		err = ErrTooMany
	case <-ctx.Done():
		err = localError{ctx.Err()}
	case <-p.stop.Done():
		err = ErrClosed
	}
	if !p.limiter.cancel(w) { // it has the slot
		p.limiter.release(c)
	}
	return err
}

func (l *limiter) acquire(c share.Client) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if l.limit > 0 && !l.slots.Try(c) {
		return ErrTooMany
	}
	l.active++
	return nil
}

// wait adds w to the queue for a slot. It is granted by a value on its channel.
func (l *limiter) wait(c share.Client, w *share.Waiter[chan<- struct{}]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.slots.Try(c): // since the first try
		l.active++
		w.Value <- struct{}{}
	default:
		l.slots.Wait(c, w)
	}
	return nil
}

// cancel takes w out of the queue; false if it has a slot.
func (l *limiter) cancel(w *share.Waiter[chan<- struct{}]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots.Cancel(w)
}

func (l *limiter) release(c share.Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 {
		l.slots.Release(c)
		l.passOn()
	}
	if l.active--; l.active == 0 && l.closed {
		close(l.idle)
	}
}

// passOn gives the slot that has become free to who waits for it; l is locked.
func (l *limiter) passOn() {
	if l.slots.Waiting() == 0 {
		return
	}
	if w := l.slots.Next(time.Now()); w != nil {
		l.active++
		w.Value <- struct{}{}
	}
}

// inFlight returns the number of exchanges.
func (l *limiter) inFlight() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active
}

func (l *limiter) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.active == 0 {
		close(l.idle)
	}
	l.closed = true
	return l.idle
}
