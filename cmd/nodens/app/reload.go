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
	"github.com/nodens-dns/nodens/internal/report"
)

// settleTime is the time between two reads of changed files. A file that was being written at
// the first read is complete by then.
const settleTime = 100 * time.Millisecond

// reloadState is the state between two checks of the files. It belongs to the goroutine of
// [agent.run], but for refused.
type reloadState struct {
	// pending is the digest of a configuration that misses a file of the current one. The
	// agent accepts it when the next check finds it again.
	pending string
	// lastError is the error of the last configuration, "" if it was accepted.
	lastError string
	// refused: the files hold a configuration that was not accepted.
	refused atomic.Bool
}

// reloadInterval returns the time until the next check of the files: that of the first reload
// directive, with its jitter, or reloadRetry if a reload is deferred.
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

// reload reads the configuration again and applies it if it has changed. An invalid one
// changes nothing: it is logged and counted once for each error, and tried again at each
// check. If asked (by a signal), reload does not wait for the files to settle. During a
// handover it is deferred, because what has been handed over must not change.
func (a *agent) reload(ctx context.Context, asked bool) {
	asked = asked || a.reloadRequested
	if a.deferReload(asked) {
		return
	}
	cfg, err := a.opts.LoadConfig()
	if err == nil && a.awaited.is(cfg) {
		if asked {
			a.logAwaited()
		}
		return
	}
	if !asked && !a.stable(ctx, cfg, err) {
		a.log.Debug("reload: the files are still changing")
		return
	}
	a.dropAwaited()
	if err == nil {
		err = a.applyChanged(ctx, cfg, asked)
	}
	if err != nil {
		a.setRefused(err, asked)
	}
}

// applyChanged applies cfg if it is not the current configuration. It returns why cfg is refused; a cfg that waits for
// its views is not.
func (a *agent) applyChanged(ctx context.Context, cfg *config.Config, asked bool) error {
	if cfg.Digest == a.current.Load().cfg.Digest {
		level := slog.LevelDebug
		if asked {
			level = slog.LevelInfo
		}
		if a.reloadState.refused.Load() {
			a.log.Info("reload: the files are valid again, and hold the configuration in force", "hash", shortHash(cfg))
			level = slog.LevelDebug
		}
		a.clearRefused()
		a.log.Log(ctx, level, "reload: the configuration is unchanged", "hash", shortHash(cfg))
		return nil
	}
	err := a.apply(ctx, cfg)
	if err != nil && !errors.Is(err, errAwaitsViews) {
		return err
	}
	a.clearRefused()
	if err == nil {
		a.log.Info("reload: the new configuration is in force", "hash", shortHash(cfg))
	}
	return nil
}

// deferReload reports whether a handover is in progress or complete. If so, the reload is
// deferred until the handover fails.
func (a *agent) deferReload(asked bool) bool {
	if !a.handoverInProgress() {
		a.reloadPending, a.reloadRequested = false, false
		return false
	}
	if !a.reloadPending {
		a.log.Info("reload: deferred until the handover has ended")
	}
	a.reloadPending, a.reloadRequested = true, asked
	return true
}

// stable reports whether cfg, or err, is the final state of the files, and not a moment
// during a write: a second read gives the same, and no file is missing, or not for the first
// time.
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

// fingerprint identifies the result of a read.
func fingerprint(cfg *config.Config, err error) string {
	if err != nil {
		return err.Error()
	}
	return cfg.Digest
}

// missingFiles reports whether a file of files that have does not list no longer exists.
func missingFiles(have, files []string) bool {
	return slices.ContainsFunc(files, func(f string) bool {
		if slices.Contains(have, f) {
			return false
		}
		_, err := os.Stat(f)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// clearRefused records that the files hold the current configuration.
func (a *agent) clearRefused() {
	a.reloadState.pending, a.reloadState.lastError = "", ""
	a.reloadState.refused.Store(false)
}

// setRefused counts and logs the error of a configuration that is not applied.
func (a *agent) setRefused(err error, asked bool) {
	a.reloadState.refused.Store(true)
	a.times.lastRejected.Store(&report.Rejection{Time: time.Now().UTC(), Error: cut(err.Error())})
	if text := err.Error(); asked || text != a.reloadState.lastError {
		a.reloadState.lastError = text
		a.reloadFailed.Add(1)
		a.countConfigMapError(err)
		a.log.Error("reload: the old configuration stays", "err", err)
	}
}

// countConfigMapError counts err if it is about the mounted kube-dns ConfigMap.
func (a *agent) countConfigMapError(err error) {
	var parseErr *config.ParseError
	if errors.As(err, &parseErr) && a.opts.KubeDNSDir != "" && filepath.Dir(parseErr.File) == filepath.Clean(a.opts.KubeDNSDir) {
		a.configMapFailed.Add(1)
	}
}
