package app

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/nodens-dns/nodens/internal/file"
)

// activeTasks is what only one of the agents on a node does, as long as it is the one: it looks
// after link and rules, answers inside of the kernel, saves the cache, and says where it is
// to be found. Run's goroutine has it to itself.
type activeTasks struct {
	cancel context.CancelFunc // nil: nobody takes care
	tasks  sync.WaitGroup
	admin  *admin
}

// setUpInterface makes the link and gives it its addresses.
func (a *agent) setUpInterface(ctx context.Context) error {
	if a.net == nil {
		return nil
	}
	return a.net.EnsureInterface(ctx)
}

// setUpRules makes the rules. Somebody else holding iptables' lock is no reason not to
// serve: the next re-check finds it free.
func (a *agent) setUpRules(ctx context.Context) error {
	if a.net == nil {
		return nil
	}
	a.fallback.applyInitial(ctx)
	err := a.net.EnsureRules(ctx)
	if err != nil && onlyLockHeld(err) {
		a.log.Warn("rules are missing until the next check", "interval", a.opts.SyncInterval, "err", err)
		return nil
	}
	return err
}

// startActive begins until endCare, or until ctx ends.
func (a *agent) startActive(ctx context.Context) (err error) {
	if err := a.writePidfile(); err != nil {
		return err
	}
	if a.active.admin, err = a.openAdmin(a.opts.AdminSocket); err != nil {
		return err
	}
	ctx, a.active.cancel = context.WithCancel(ctx)
	a.active.tasks.Go(func() { a.saveLoop(ctx) })
	a.active.tasks.Go(func() { a.fastPath.run(ctx, a.healthy) })
	if a.net != nil {
		a.active.tasks.Go(func() { a.net.Run(ctx) })
		a.active.tasks.Go(func() { a.fallback.run(ctx) })
	}
	return nil
}

// stopActive ends it, if it has begun. What it cared for stays; the file that says which
// process it was, too: it is the next one's.
func (a *agent) stopActive() {
	if a.active.cancel == nil {
		return
	}
	a.active.cancel()
	a.active.cancel = nil
	a.active.tasks.Wait()
	a.active.admin.close()
	a.active.admin = nil
}

// writePidfile writes the process id to -pidfile, over that of the agent before.
func (a *agent) writePidfile() error {
	if a.opts.Pidfile == "" {
		return nil
	}
	if err := file.Overwrite(a.opts.Pidfile, strconv.Itoa(os.Getpid())+"\n", 0o644); err != nil {
		return fmt.Errorf("writing -pidfile %s: %w; name a file of its own, in a folder that only the agent's user can write to", a.opts.Pidfile, err)
	}
	return nil
}

func (a *agent) removePidfile() {
	if a.opts.Pidfile != "" {
		_ = os.Remove(a.opts.Pidfile)
	}
}
