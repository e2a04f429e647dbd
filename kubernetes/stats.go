package kubernetes

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// Stats is a snapshot of a view's counters.
type Stats struct {
	// Synced is [View.Synced].
	Synced bool
	// SyncTime is the time from [Open] until the view was synced for the first time; 0
	// before that.
	SyncTime time.Duration
	// Services, Slices, Endpoints, Namespaces and Pods are the sizes of the view. Endpoints
	// counts addresses: one in two services is two.
	Services, Slices, Endpoints, Namespaces, Pods int
	// Level is how much of the cluster's EndpointSlices is in view: node, wide or all.
	// Sources is the number of namespaces of which slices are watched at the level node, of single Services or all of them, MaxSources the most
	// that there may be. At other levels it counts those that are watched besides the cluster's.
	Level               string
	Sources, MaxSources int
	// Faulty is the number of objects with values that DNS can't show; Faults counts each
	// time that an object became faulty.
	Faulty int
	Faults uint64
	// SlowEvents counts the changes of an object that took longer than [SlowEvent].
	SlowEvents uint64
	// Serial is the zone's SOA serial.
	Serial uint32
	// Opened is when the view was opened. LastEvent is the last sign of life of the API server, or
	// the last change of the files, maybe before that if the view was saved; the zero Time for none.
	Opened, LastEvent time.Time
	// Failure is why requests to the API server fail now, the zero Failure if none does.
	Failure reflector.Failure
	// Gaps are what the view could not show.
	Gaps Gaps
	// Programming is dns_programming_duration_seconds by service_kind.
	Programming map[string]stat.Snapshot
	// Requests is rest_client_requests_total.
	Requests []Requests
}

// Gaps are what a view could not show, or had to list again.
type Gaps struct {
	// Unlisted are the resources without a first list, Failing those whose requests fail now.
	// Both are sorted.
	Unlisted, Failing []string
	// Relists counts the lists after the first one of a watch, because the API server could not
	// resume the watch. LastRelist is the last one, the zero Time for none.
	Relists    uint64
	LastRelist time.Time
	// SetBacks counts the times that the API server's resourceVersions were set back, as after a
	// restore of its data from a backup. LastSetBack is the last one, the zero Time for none.
	SetBacks    uint64
	LastSetBack time.Time
	// Silences counts the times without a sign of life of the API server for longer than
	// [SilentAfter], since Run. Changes arrived late then. LastSilence is the end of the last one,
	// LastSilent how long it was.
	Silences    uint64
	LastSilence time.Time
	LastSilent  time.Duration
	// Unreadable counts events and list items that could not be decoded.
	Unreadable uint64
}

// SilentAfter is the time without a sign of life of the API server after which a view has a gap: a
// watch delivers a bookmark about once a minute, after 75 s at the latest.
const SilentAfter = 2 * time.Minute

// gapLog keeps the numbers of [Gaps]. It is safe for concurrent use.
type gapLog struct {
	mu   sync.Mutex
	gaps Gaps
}

// relisted records a list after the first one.
func (l *gapLog) relisted(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gaps.Relists++
	l.gaps.LastRelist = now
}

// setBack records that resourceVersions were set back. It reports whether the last time is long
// enough ago for a line in the log.
func (l *gapLog) setBack(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := now.Sub(l.gaps.LastSetBack) >= setBackLogInterval
	l.gaps.SetBacks++
	l.gaps.LastSetBack = now
	return due
}

// setBackLogInterval is the time without a set-back after which the next one is logged.
const setBackLogInterval = time.Minute

// silent records that the API server was silent for d, until now.
func (l *gapLog) silent(now time.Time, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gaps.Silences++
	l.gaps.LastSilence, l.gaps.LastSilent = now, d
}

// Requests counts the requests to one API server with one outcome. Code is the
// HTTP status, or "<error>" where none came.
type Requests struct {
	Code, Method, Host string
	Count              uint64
}

// programmingBounds are the bucket bounds of CoreDNS, 1 ms to about 9 minutes, which
// dashboards of the scalability SLO expect.
var programmingBounds = stat.ExponentialBuckets(0.001, 20)

// requestCounter counts HTTP requests by outcome; safe for concurrent use.
type requestCounter struct {
	mu     sync.Mutex
	counts map[Requests]uint64 // Count is 0 in the keys
}

// wrap returns a transport that counts the requests to next.
func (c *requestCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		code := "<error>"
		if err == nil {
			code = strconv.Itoa(resp.StatusCode)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.counts == nil {
			c.counts = map[Requests]uint64{}
		}
		c.counts[Requests{Code: code, Method: req.Method, Host: req.URL.Host}]++
		return resp, err
	})
}

func (c *requestCounter) snapshot() []Requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Requests
	for r, n := range c.counts {
		r.Count = n
		list = append(list, r)
	}
	return list
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
