package server

import (
	"context"
	"sync"
)

// idleCrew is how many goroutines stay when there is nothing to wait for. Each
// holds a stack of 8 KiB. Half would have a flood of misses start goroutines again
// and again, double would hold 4 MiB after any burst.
const idleCrew = 256

// crew is the goroutines in which UDP queries wait for upstreams. One that is done
// takes the next query, since its stack has the size that takes by then: a new
// goroutine's grows twice on the way, which costs a fifth of the whole miss.
type crew struct {
	next chan *datagram
	idle chan struct{} // one value for each that stays
	all  sync.WaitGroup
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

// rest waits for the next query to complete; nil is the end: of the server's ctx,
// or since enough others rest.
func (c *crew) rest(ctx context.Context) *datagram {
	select {
	case c.idle <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-c.idle }()
	select {
	case w := <-c.next:
		return w
	case <-ctx.Done():
		return nil
	}
}
