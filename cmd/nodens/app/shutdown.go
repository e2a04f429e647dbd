package app

import (
	"context"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// lameduck keeps serving for the longest lameduck of the configuration, with /ready at 503,
// so that clients are routed elsewhere. Meanwhile it saves the cache.
func (a *agent) lameduck() {
	began := time.Now()
	defer func() { a.lameduckTime = time.Since(began) }()
	a.stopping.Store(true)
	var wait time.Duration
	for _, b := range a.current.Load().cfg.Blocks {
		if b.Health != nil {
			wait = max(wait, b.Health.Lameduck)
		}
	}
	limit := config.MaxLameduck
	if a.net == nil {
		limit = config.MaxPodLameduck
	}
	if wait > limit {
		a.log.Warn("lameduck shortened so that the stop does not take too long", "lameduck", wait, "limit", limit)
		wait = limit
	}
	a.log.Info("stopping", "lameduck", wait)
	end := time.NewTimer(wait)
	defer end.Stop()
	limited, cancel := context.WithTimeout(context.Background(), max(wait, finalSaveTimeout))
	defer cancel()
	saved := make(chan struct{})
	go func() { // a hung disk ignores limited
		defer close(saved)
		a.save(limited)
	}()
	<-end.C
	select {
	case <-saved:
	case <-limited.Done():
		a.log.Warn("saving the cache timed out")
	}
}

// shutdown stops the agent: first the rules, so that new queries go to the cluster DNS, then
// the sockets, then the addresses. The time that the lame duck has not used is the teardown's. If
// another agent serves, it keeps the node's network as it is.
func (a *agent) shutdown() error {
	a.stopping.Store(true)
	close(a.mainClosed)
	owns := a.ownsNode && !a.yielded.Load() && !a.returnToPredecessor()
	a.stopActive()
	drain := func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		if err := a.server.Shutdown(ctx); err != nil {
			a.log.Warn("queries were in flight when the sockets closed", "err", err)
		}
	}
	if owns {
		a.host.end()
	}
	var err error
	if a.net != nil && owns {
		err = a.net.Teardown(config.MaxLameduck-a.lameduckTime, drain)
	} else {
		drain()
	}
	for part, cancel := range a.cancels {
		cancel()
		delete(a.cancels, part)
	}
	close(a.drained)
	a.dropAwaited()
	if g := a.current.Load(); g != nil {
		g.closeUnused(nil)
	}
	a.http.Close()
	if owns {
		a.removePidfile()
	}
	a.closeHandover()
	return err
}

// closeHandover closes the connections to other agents. An agent that waits for the end of
// this one starts then.
func (a *agent) closeHandover() {
	if a.handoverServer.Load() != nil {
		a.stopServer()
	}
	if a.predecessor != nil {
		_ = a.predecessor.Close()
	}
}

// returnToPredecessor reports whether the predecessor still lives, and if so, makes it resume
// its work.
func (a *agent) returnToPredecessor() bool {
	if a.predecessor == nil || !a.ownsNode || !a.predecessorLives() {
		return false
	}
	a.log.Info("the predecessor resumes")
	a.stopActive()
	_ = a.predecessor.Close()
	a.predecessor = nil
	return true
}
