package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// settling is how long after a change was seen the files are read once more: what is
// being written just then is whole by that time. Half of it is close to what a slow
// disk takes for a file, and twice as much is seen by whoever waits for a change.
const settling = 100 * time.Millisecond

// watch is what an agent remembers from one look at its files to the next. One
// goroutine uses it; refused is for everybody.
type watch struct {
	// pending is the digest of a configuration that lacks a file which the one in
	// force was made from: it counts once a second look has found the same.
	pending string
	// fault is what the configuration that was refused last was refused for, ""
	// after one that was not.
	fault string
	// refused says that the files hold something else than what is in force.
	refused atomic.Bool
}

// reloadInterval is when the configuration is looked at next: as the first reload
// directive says, with its jitter, so that the agents of a cluster don't all read
// at once; soon if a look was put off.
func (a *agent) reloadInterval() time.Duration {
	if a.overdue {
		return retry
	}
	for _, p := range a.current.Load().parts {
		if r := p.block.Reload; r != nil && r.Interval > 0 {
			return r.Interval + time.Duration(rand.Int64N(int64(r.Jitter)+1))
		}
	}
	if a.opts.reloadBySignal {
		return a.opts.syncInterval
	}
	return never
}

// reload reads the configuration again and takes it on if it differs from what
// runs. A broken one changes nothing but a counter and the log, once for what is
// wrong with it: it is tried again at every look, but only a new fault is news.
// Asked for, by a signal, it acts on what is there now. While another agent takes over
// it is put off: what has been handed over must not change.
func (a *agent) reload(ctx context.Context, asked bool) {
	asked = asked || a.asked
	if a.putOff(asked) {
		return
	}
	cfg, err := a.opts.loadConfig()
	if !asked && !a.stands(ctx, cfg, err) {
		a.log.Debug("reload: what has changed is left to the next look")
		return
	}
	if err == nil && cfg.Digest == a.current.Load().cfg.Digest {
		a.accept()
		level := slog.LevelDebug
		if asked {
			level = slog.LevelInfo
		}
		a.log.Log(ctx, level, "reload: the configuration is unchanged", "hash", cfg.Hash)
		return
	}
	if err == nil {
		err = a.apply(ctx, cfg)
	}
	if err != nil {
		a.refuse(err, asked)
		return
	}
	a.accept()
	a.log.Info("reload: the new configuration is in force", "hash", cfg.Hash)
}

// putOff reports whether a hand-over is under way, or done, and remembers what was asked
// for until it has come to nothing.
func (a *agent) putOff(asked bool) bool {
	if !a.handingOver() {
		a.overdue, a.asked = false, false
		return false
	}
	if !a.overdue {
		a.log.Info("reload: put off until the hand-over has ended")
	}
	a.overdue, a.asked = true, asked
	return true
}

// stands reports whether what a look at the files has found is more than a moment of
// somebody writing them: a second look finds the same, and no file is missing that
// was there, or not for the first time.
func (a *agent) stands(ctx context.Context, cfg *config.Config, err error) bool {
	running := a.current.Load().cfg
	if err == nil && cfg.Digest == running.Digest {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settling):
	}
	if again, now := a.opts.loadConfig(); fingerprint(again, now) != fingerprint(cfg, err) {
		return false
	}
	if err != nil || !lacks(cfg.Files, running.Files) || a.watch.pending == cfg.Digest {
		return true
	}
	a.watch.pending = cfg.Digest
	return false
}

// fingerprint tells what two reads have found apart.
func fingerprint(cfg *config.Config, err error) string {
	if err != nil {
		return err.Error()
	}
	return cfg.Digest
}

// lacks reports whether one of files, which have does without, is not there any more.
func lacks(have, files []string) bool {
	return slices.ContainsFunc(files, func(f string) bool {
		if slices.Contains(have, f) {
			return false
		}
		_, err := os.Stat(f)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func (a *agent) accept() {
	a.watch.pending, a.watch.fault = "", ""
	a.watch.refused.Store(false)
}

// refuse counts and logs why a configuration was not taken on.
func (a *agent) refuse(err error, asked bool) {
	a.watch.refused.Store(true)
	if text := err.Error(); asked || text != a.watch.fault {
		a.watch.fault = text
		a.reloadFailed.Add(1)
		a.countConfigMap(err)
		a.log.Error("reload: the old configuration stays", "err", err)
	}
}

// countConfigMap counts err if it is about the mounted kube-dns ConfigMap.
func (a *agent) countConfigMap(err error) {
	var fault *config.Fault
	if errors.As(err, &fault) && a.opts.kubeDNSDir != "" && filepath.Dir(fault.File) == filepath.Clean(a.opts.kubeDNSDir) {
		a.configMapFailed.Add(1)
	}
}
