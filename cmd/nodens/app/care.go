package app

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/nodens-dns/nodens/internal/file"
)

// care is what only one of the agents on a node does, as long as it is the one: it looks
// after link and rules, answers inside of the kernel, saves the cache, and says where it is
// to be found. Run's goroutine has it to itself.
type care struct {
	end   context.CancelFunc // nil: nobody takes care
	tasks sync.WaitGroup
	admin *admin
}

// setLinks makes the link and gives it its addresses.
func (a *agent) setLinks(ctx context.Context) error {
	if a.net == nil {
		return nil
	}
	return a.net.EnsureInterface(ctx)
}

// setRules makes the rules. Somebody else holding iptables' lock is no reason not to
// serve: the next re-check finds it free.
func (a *agent) setRules(ctx context.Context) error {
	if a.net == nil {
		return nil
	}
	a.diversion.first(ctx)
	err := a.net.EnsureRules(ctx)
	if err != nil && locked(err) {
		a.log.Warn("rules are missing until the next check", "interval", a.opts.syncInterval, "err", err)
		return nil
	}
	return err
}

// takeCare begins until endCare, or until ctx ends.
func (a *agent) takeCare(ctx context.Context) (err error) {
	if err := a.writePidfile(); err != nil {
		return err
	}
	if a.care.admin, err = a.openAdmin(a.opts.adminSocket); err != nil {
		return err
	}
	ctx, a.care.end = context.WithCancel(ctx)
	a.care.tasks.Go(func() { a.keepSaving(ctx) })
	a.care.tasks.Go(func() { a.shortcut.run(ctx, a.well) })
	if a.net != nil {
		a.care.tasks.Go(func() { a.net.Run(ctx) })
		a.care.tasks.Go(func() { a.diversion.run(ctx) })
	}
	return nil
}

// endCare ends it, if it has begun. What it cared for stays; the file that says which
// process it was, too: it is the next one's.
func (a *agent) endCare() {
	if a.care.end == nil {
		return
	}
	a.care.end()
	a.care.end = nil
	a.care.tasks.Wait()
	a.care.admin.close()
	a.care.admin = nil
}

// writePidfile writes the process id to -pidfile, over that of the agent before.
func (a *agent) writePidfile() error {
	if a.opts.pidfile == "" {
		return nil
	}
	if err := file.Overwrite(a.opts.pidfile, strconv.Itoa(os.Getpid())+"\n", 0o644); err != nil {
		return fmt.Errorf("writing -pidfile %s: %w; name a file of its own, in a folder that only the agent's user can write to", a.opts.pidfile, err)
	}
	return nil
}

func (a *agent) removePidfile() {
	if a.opts.pidfile != "" {
		_ = os.Remove(a.opts.pidfile)
	}
}
