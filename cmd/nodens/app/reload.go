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

// settleTime is how long after a change was seen the files are read once more: what is
// being written just then is whole by that time. Half of it is close to what a slow
// disk takes for a file, and twice as much is seen by whoever waits for a change.
const settleTime = 100 * time.Millisecond

// reloadState is what an agent remembers from one look at its files to the next. One
// goroutine uses it; refused is for everybody.
type reloadState struct {
	// pending is the digest of a configuration that lacks a file which the one in
	// force was made from: it counts once a second look has found the same.
	pending string
	// lastError is what the configuration that was refused last was refused for, ""
	// after one that was not.
	lastError string
	// refused says that the files hold something else than what is in force.
	refused atomic.Bool
}

// reloadInterval is when the configuration is looked at next: as the first reload
// directive says, with its jitter, so that the agents of a cluster don't all read
// at once; soon if a look was put off.
func (a *agent) reloadInterval() time.Duration {
	if a.reloadPending {
		return reloadRetry
	}
	for _, p := range a.current.Load().blocks {
		if r := p.block.Reload; r != nil && r.Interval > 0 {
			return r.Interval + time.Duration(rand.Int64N(int64(r.Jitter)+1))
		}
	}
	if a.opts.ReloadBySignal {
		return a.opts.SyncInterval
	}
	return never
}

// reload reads the configuration again and takes it on if it differs from what
// runs. A broken one changes nothing but a counter and the log, once for what is
// wrong with it: it is tried again at every look, but only a new fault is news.
// Asked for, by a signal, it acts on what is there now. While another agent takes over
// it is put off: what has been handed over must not change.
func (a *agent) reload(ctx context.Context, asked bool) {
	asked = asked || a.reloadRequested
	if a.deferReload(asked) {
		return
	}
	cfg, err := a.opts.LoadConfig()
	if !asked && !a.stable(ctx, cfg, err) {
		a.log.Debug("reload: what has changed is left to the next look")
		return
	}
	if err == nil && cfg.Digest == a.current.Load().cfg.Digest {
		a.clearRefused()
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
		a.setRefused(err, asked)
		return
	}
	a.clearRefused()
	a.log.Info("reload: the new configuration is in force", "hash", cfg.Hash)
}

// deferReload reports whether a hand-over is under way, or done, and remembers what was asked
// for until it has come to nothing.
func (a *agent) deferReload(asked bool) bool {
	if !a.handoverInProgress() {
		a.reloadPending, a.reloadRequested = false, false
		return false
	}
	if !a.reloadPending {
		a.log.Info("reload: put off until the hand-over has ended")
	}
	a.reloadPending, a.reloadRequested = true, asked
	return true
}

// stable reports whether what a look at the files has found is more than a moment of
// somebody writing them: a second look finds the same, and no file is missing that
// was there, or not for the first time.
func (a *agent) stable(ctx context.Context, cfg *config.Config, err error) bool {
	running := a.current.Load().cfg
	if err == nil && cfg.Digest == running.Digest {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settleTime):
	}
	if again, now := a.opts.LoadConfig(); fingerprint(again, now) != fingerprint(cfg, err) {
		return false
	}
	if err != nil || !missingFiles(cfg.Files, running.Files) || a.reloadState.pending == cfg.Digest {
		return true
	}
	a.reloadState.pending = cfg.Digest
	return false
}

// fingerprint tells what two reads have found apart.
func fingerprint(cfg *config.Config, err error) string {
	if err != nil {
		return err.Error()
	}
	return cfg.Digest
}

// missingFiles reports whether one of files, which have does without, is not there any more.
func missingFiles(have, files []string) bool {
	return slices.ContainsFunc(files, func(f string) bool {
		if slices.Contains(have, f) {
			return false
		}
		_, err := os.Stat(f)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func (a *agent) clearRefused() {
	a.reloadState.pending, a.reloadState.lastError = "", ""
	a.reloadState.refused.Store(false)
}

// setRefused counts and logs why a configuration was not taken on.
func (a *agent) setRefused(err error, asked bool) {
	a.reloadState.refused.Store(true)
	if text := err.Error(); asked || text != a.reloadState.lastError {
		a.reloadState.lastError = text
		a.reloadFailed.Add(1)
		a.countConfigMapError(err)
		a.log.Error("reload: the old configuration stays", "err", err)
	}
}

// countConfigMapError counts err if it is about the mounted kube-dns ConfigMap.
func (a *agent) countConfigMapError(err error) {
	var fault *config.ParseError
	if errors.As(err, &fault) && a.opts.KubeDNSDir != "" && filepath.Dir(fault.File) == filepath.Clean(a.opts.KubeDNSDir) {
		a.configMapFailed.Add(1)
	}
}
