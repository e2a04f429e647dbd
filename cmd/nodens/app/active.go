package app

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/netsetup"
)

// activeTasks are the tasks of the one agent on a node that serves: it maintains the interface
// and the rules, follows the node's name servers, answers in the kernel, saves the cache, serves the page, and has the pidfile and the
// admin socket. It belongs to the goroutine of [agent.run].
type activeTasks struct {
	cancel  context.CancelFunc // nil: the tasks do not run
	tasks   sync.WaitGroup
	admin   *admin
	pidfile bool // --pidfile has this process's ID
}

// setUpInterface creates the interface and assigns its addresses.
func (a *agent) setUpInterface(ctx context.Context) error {
	if a.net == nil {
		return nil
	}
	return a.net.EnsureInterface(ctx)
}

// setUpRules installs the rules. If that fails for a reason that another program may remove, the agent
// serves anyway, and the next check tries again: a predecessor of an earlier version may write its own rules at the same time, and the
// first check comes right after the handover. A lack of
// permission, of a program, or of a feature of the kernel is an error: it does not pass.
func (a *agent) setUpRules(ctx context.Context) error {
	if a.net == nil {
		return nil
	}
	a.fallback.applyInitial(ctx)
	a.host.applyInitial(ctx)
	err := a.net.EnsureRules(ctx)
	if err != nil && ctx.Err() == nil && !netsetup.IsPermanent(err) {
		a.log.Warn("installing the rules failed; the next check tries again", "interval", a.opts.SyncInterval, "err", err)
		return nil
	}
	return err
}

// startActive starts the tasks. They run until stopActive, or until ctx ends.
func (a *agent) startActive(ctx context.Context) (err error) {
	if err := a.writePidfile(); err != nil {
		a.log.Warn("no pidfile", "err", err)
	}
	a.active.admin, err = a.openAdmin(a.opts.AdminSocket)
	switch {
	case err == nil:
	case a.opts.AdminSocketOptional:
		a.log.Warn("no admin socket: nodens status, upstreams and flush can't ask this agent", "err", err)
	default:
		return err
	}
	ctx, a.active.cancel = context.WithCancel(ctx)
	a.active.tasks.Go(func() { a.saveLoop(ctx) })
	a.active.tasks.Go(func() { a.kernelPath.run(ctx, a.newHealthCheck()) })
	if a.builder.egress != nil {
		a.active.tasks.Go(func() { a.builder.egress.Run(ctx) })
	}
	if a.nodeReporter != nil {
		a.active.tasks.Go(func() { a.nodeReporter.run(ctx) })
	}
	if a.opts.Page.IsValid() {
		a.active.tasks.Go(func() { a.servePage(ctx, a.opts.Page) })
	}
	if a.host != nil {
		a.active.tasks.Go(func() { a.host.run(ctx) })
	}
	if a.net != nil {
		a.active.tasks.Go(func() { a.net.Run(ctx) })
		a.active.tasks.Go(func() { a.fallback.run(ctx) })
	}
	return nil
}

// stopActive stops the tasks, if they run. The interface, the rules and the pidfile stay: the
// successor replaces the pidfile.
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

// writePidfile writes the process ID to --pidfile, over the predecessor's.
func (a *agent) writePidfile() error {
	if a.opts.Pidfile == "" {
		return nil
	}
	if err := file.Overwrite(a.opts.Pidfile, strconv.Itoa(os.Getpid())+"\n", 0o644); err != nil {
		return fmt.Errorf("writing --pidfile %s: %w; name a file of its own, in a directory that only the agent's user can write to", a.opts.Pidfile, err)
	}
	a.active.pidfile = true
	return nil
}

func (a *agent) removePidfile() {
	if a.active.pidfile {
		a.active.pidfile = false
		_ = os.Remove(a.opts.Pidfile)
	}
}
