package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxIdleWorkers is how many idle workers are kept. Each holds a stack of 8 KiB.
	maxIdleWorkers = 256
	// trimInterval is how often half of the idle workers end: after a burst all have ended
	// within a minute.
	trimInterval = 5 * time.Second
)

// workerPool is the goroutines in which UDP queries wait that are not parked (see [pendingQuery]). A worker that is
// done takes the next query, because its stack has already grown: growing a new
// goroutine's stack takes a fifth of the time of a miss. It is safe for concurrent use.
type workerPool struct {
	work     chan *pendingQuery
	idle     chan struct{} // holds one value for each idle worker
	running  sync.WaitGroup
	busy     atomic.Int32 // how many workers have a query
	trimming atomic.Bool  // a trim is scheduled
}

// newWorkerPool returns a pool without workers that keeps at most idle of them.
func newWorkerPool(idle int) *workerPool {
	return &workerPool{work: make(chan *pendingQuery), idle: make(chan struct{}, idle)}
}

// dispatch gives w to an idle worker. It does not block and returns false if there is
// none.
func (c *workerPool) dispatch(w *pendingQuery) bool {
	select {
	case c.work <- w:
		return true
	default:
		return false
	}
}

// waitForWork returns the next query for the calling worker. It returns nil if the worker
// has to end: ctx has ended, enough others are idle, or trim has chosen it.
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

// trim ends half of the idle workers, rounded up, and schedules itself again while any
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
