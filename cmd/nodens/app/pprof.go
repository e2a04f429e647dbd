package app

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"

	"github.com/nodens-dns/nodens/internal/config"
)

const (
	// maxProfiles bounds concurrent requests.
	maxProfiles = 2
	// maxProfile is the longest profile, in seconds.
	maxProfile = 300
)

// addPprof adds the handlers of the pprof directive.
func addPprof(add func(path string, h http.Handler)) {
	places := make(chan struct{}, maxProfiles)
	for path, h := range map[string]http.HandlerFunc{
		config.PprofPath: pprof.Index, config.PprofPath + "cmdline": pprof.Cmdline, config.PprofPath + "profile": pprof.Profile,
		config.PprofPath + "symbol": pprof.Symbol, config.PprofPath + "trace": pprof.Trace,
	} {
		add(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s, err := strconv.ParseFloat(r.FormValue("seconds"), 64); err == nil && !(s <= maxProfile) {
				http.Error(w, "seconds is out of range; give at most "+strconv.Itoa(maxProfile), http.StatusBadRequest)
				return
			}
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
				h(w, r)
			default:
				http.Error(w, "too many profiles at once; try again", http.StatusServiceUnavailable)
			}
		}))
	}
}

// applyProcessSettings sets the log level and the block profile rate, which the whole process
// shares: the highest that a block of cfg asks for. The
// `debug` directive logs more than --log-level says, never less.
func (a *agent) applyProcessSettings(cfg *config.Config) {
	level, rate := a.opts.LogLevel, 0
	for _, b := range cfg.Blocks {
		if b.Debug != nil {
			level = slog.LevelDebug
		}
		if b.Pprof != nil {
			rate = max(rate, b.Pprof.BlockRate)
		}
	}
	a.logLevel.Set(level)
	runtime.SetBlockProfileRate(rate)
}
