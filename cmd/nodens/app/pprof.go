package app

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"

	"github.com/nodens-dns/nodens/internal/config"
)

// PprofPath is the path of the profiles, as the go tool asks for it.
const PprofPath = "/debug/pprof/"

const (
	// maxProfiles bounds requests at once: one for CPU and one for something else.
	maxProfiles = 2
	// maxProfile is the longest profile in seconds, ten of the go tool's own: a
	// request holds its place, and a trace its memory, for as long.
	maxProfile = 300
)

// addPprof adds the handlers of the directive pprof.
func addPprof(add func(path string, h http.Handler)) {
	places := make(chan struct{}, maxProfiles)
	for path, h := range map[string]http.HandlerFunc{
		PprofPath: pprof.Index, PprofPath + "cmdline": pprof.Cmdline, PprofPath + "profile": pprof.Profile,
		PprofPath + "symbol": pprof.Symbol, PprofPath + "trace": pprof.Trace,
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

// applyProcessSettings sets what is one for the whole process, and what any block of cfg may ask for.
func (a *agent) applyProcessSettings(cfg *config.Config) {
	level, rate := slog.LevelInfo, 0
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
