package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxIdleWorkers is how many goroutines stay when there is nothing to wait for. Each
	// holds a stack of 8 KiB. Half would have a flood of misses start goroutines
	// again and again, double would hold 4 MiB after any burst.
	maxIdleWorkers = 256
	// trimInterval is how often half of those that rest leave: after a burst all are
	// gone within a minute. Twice as often would send home those that a steady load
	// needs again in a moment.
	trimInterval = 5 * time.Second
)

// workerPool is the goroutines in which UDP queries wait for upstreams. One that is done
// takes the next query, since its stack has the size that takes by then: a new
// goroutine's grows twice on the way, which costs a fifth of the whole miss.
type workerPool struct {
	work     chan *pendingQuery
	idle     chan struct{} // one value for each that stays
	running  sync.WaitGroup
	trimming atomic.Bool // they are going to be thinned out
}

// newWorkerPool is nobody yet; idle bounds how many stay.
func newWorkerPool(idle int) *workerPool {
	return &workerPool{work: make(chan *pendingQuery), idle: make(chan struct{}, idle)}
}

// dispatch gives w to a goroutine that is idle; false if there is none.
func (c *workerPool) dispatch(w *pendingQuery) bool {
	select {
	case c.work <- w:
		return true
	default:
		return false
	}
}

// waitForWork waits for the next query to complete; nil is the end: of the server's ctx, or
// since enough others rest, or because there has been too little to do.
func (c *workerPool) waitForWork(ctx context.Context) *pendingQuery {
	select {
	case c.idle <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-c.idle }()
	if !c.trimming.Swap(true) {
		time.AfterFunc(trimInterval, c.trim)
	}
	select {
	case w := <-c.work:
		return w
	case <-ctx.Done():
		return nil
	}
}

// trim ends half of those that rest, the last one too, and comes back while any
// are left.
func (c *workerPool) trim() {
	n := len(c.idle)
	for range (n + 1) / 2 {
		c.dispatch(nil)
	}
	if n > 1 {
		time.AfterFunc(trimInterval, c.trim)
		return
	}
	c.trimming.Store(false)
}
