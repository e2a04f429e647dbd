package endpoint

import (
	"context"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/stat"
)

// Probe returns a handler for a probe: 200 and "OK" if check returns nil, else 503 and the
// error. What notice (nil: none) returns is the second line.
func Probe(check func() error, notice func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		text := "OK"
		if notice != nil {
			if line := notice(); line != "" {
				text += "\n" + line
			}
		}
		_, _ = io.WriteString(w, text)
	})
}

// SelfProbe measures the response time of the agent's own health endpoint, which rises first
// when the process lacks CPU.
type SelfProbe struct {
	duration *stat.Histogram
	failed   atomic.Uint64
}

// NewSelfProbe returns a probe that has measured nothing.
func NewSelfProbe() *SelfProbe { return &SelfProbe{duration: stat.NewHistogram(stat.DurationBuckets)} }

// Duration returns the response times in seconds, and Failures the number of requests that failed.
func (p *SelfProbe) Duration() stat.Snapshot { return p.duration.Read() }
func (p *SelfProbe) Failures() uint64        { return p.failed.Load() }

// selfProbeInterval is the interval of probes. CoreDNS's is a second.
const selfProbeInterval = 5 * time.Second

// Run probes address until ctx ends.
func (p *SelfProbe) Run(ctx context.Context, address string) {
	client := &http.Client{Timeout: selfProbeInterval}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(selfProbeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		start := time.Now()
		err := RequestHealth(ctx, client, address)
		if ctx.Err() != nil {
			return
		}
		p.duration.Observe(time.Since(start).Seconds())
		if err != nil {
			p.failed.Add(1)
		}
	}
}

// RequestHealth requests /health at addr.
func RequestHealth(ctx context.Context, client *http.Client, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, MaxHeader))
	_ = resp.Body.Close()
	return nil
}

const (
	// maxProfiles bounds concurrent requests.
	maxProfiles = 2
	// maxProfile is the longest profile, in seconds.
	maxProfile = 300
)

// AddPprof calls add with the handlers of the pprof directive.
func AddPprof(add func(path string, h http.Handler)) {
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
