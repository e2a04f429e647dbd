package app

import (
	"context"
	"errors"
	"time"

	"github.com/nodens-dns/nodens/netsetup"
)

// lameduck goes on serving for a while after the end was asked for, with /ready
// at 503, so that whoever routes to this agent can stop doing so.
func (a *agent) lameduck() {
	a.stopping.Store(true)
	var wait time.Duration
	for _, b := range a.current.Load().cfg.Blocks {
		if b.Health != nil {
			wait = max(wait, b.Health.Lameduck)
		}
	}
	if wait > maxLameduck {
		a.log.Warn("lameduck is cut so that the stop takes less than five seconds", "lameduck", wait, "cut", maxLameduck)
		wait = maxLameduck
	}
	a.log.Info("stopping", "lameduck", wait)
	end := time.NewTimer(wait)
	defer end.Stop()
	limited, cancel := context.WithTimeout(context.Background(), max(wait, finalSaveTimeout))
	defer cancel()
	saved := make(chan struct{})
	go func() { // on its own, as a disk that hangs does not mind ctx
		defer close(saved)
		a.save(limited)
	}()
	<-end.C
	select {
	case <-saved:
	case <-limited.Done():
		a.log.Warn("the cache could not be saved in time")
	}
}

// onlyLockHeld reports whether all that is wrong is somebody else holding iptables' lock.
func onlyLockHeld(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !onlyLockHeld(e) {
				return false
			}
		}
		return true
	}
	var failure *netsetup.Error
	return errors.As(err, &failure) && failure.Type == netsetup.IptablesLock
}

// shutdown stops serving: rules first, so that new packets go to the cluster DNS,
// then the sockets, then the addresses. Where another agent serves, all that is the
// node's is left to it.
func (a *agent) shutdown() error {
	a.stopping.Store(true)
	close(a.mainClosed)
	mine := a.ownsNode && !a.yielded.Load() && !a.returnToPredecessor()
	a.stopActive()
	drain := func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		if err := a.server.Shutdown(ctx); err != nil {
			a.log.Warn("stopping", "err", err)
		}
	}
	var err error
	if a.net != nil && mine {
		err = a.net.Teardown(drain)
	} else {
		drain()
	}
	for part, cancel := range a.cancels {
		cancel()
		delete(a.cancels, part)
	}
	close(a.drained)
	if g := a.current.Load(); g != nil {
		g.closeUnused(nil)
	}
	a.http.close()
	if mine {
		a.removePidfile()
	}
	a.closeHandover()
	return err
}

// closeHandover ends the connections to other agents: whoever waits for the end of this
// one may begin.
func (a *agent) closeHandover() {
	if a.handoverServer.Load() != nil {
		a.stopServer()
	}
	if a.predecessor != nil {
		_ = a.predecessor.Close()
	}
}

// returnToPredecessor leaves everything to the agent that this one has taken over from, if it is
// still there: it goes on as if nothing had been.
func (a *agent) returnToPredecessor() bool {
	if a.predecessor == nil || !a.ownsNode {
		return false
	}
	select {
	case <-a.predecessor.Gone():
		return false
	default:
	}
	a.log.Info("the agent before this one goes on")
	a.stopActive()
	_ = a.predecessor.Close()
	a.predecessor = nil
	return true
}
