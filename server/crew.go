package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// idleCrew is how many goroutines stay when there is nothing to wait for. Each
	// holds a stack of 8 KiB. Half would have a flood of misses start goroutines
	// again and again, double would hold 4 MiB after any burst.
	idleCrew = 256
	// thinning is how often half of those that rest leave: after a burst all are
	// gone within a minute. Twice as often would send home those that a steady load
	// needs again in a moment.
	thinning = 5 * time.Second
)

// crew is the goroutines in which UDP queries wait for upstreams. One that is done
// takes the next query, since its stack has the size that takes by then: a new
// goroutine's grows twice on the way, which costs a fifth of the whole miss.
type crew struct {
	next chan *datagram
	idle chan struct{} // one value for each that stays
	all  sync.WaitGroup
	thin atomic.Bool // they are going to be thinned out
}

// newCrew is nobody yet; idle bounds how many stay.
func newCrew(idle int) *crew {
	return &crew{next: make(chan *datagram), idle: make(chan struct{}, idle)}
}

// hand gives w to a goroutine that is idle; false if there is none.
func (c *crew) hand(w *datagram) bool {
	select {
	case c.next <- w:
		return true
	default:
		return false
	}
}

// rest waits for the next query to complete; nil is the end: of the server's ctx, or
// since enough others rest, or because there has been too little to do.
func (c *crew) rest(ctx context.Context) *datagram {
	select {
	case c.idle <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-c.idle }()
	if !c.thin.Swap(true) {
		time.AfterFunc(thinning, c.sendHome)
	}
	select {
	case w := <-c.next:
		return w
	case <-ctx.Done():
		return nil
	}
}

// sendHome ends half of those that rest, the last one too, and comes back while any
// are left.
func (c *crew) sendHome() {
	n := len(c.idle)
	for range (n + 1) / 2 {
		c.hand(nil)
	}
	if n > 1 {
		time.AfterFunc(thinning, c.sendHome)
		return
	}
	c.thin.Store(false)
}
