package kubernetes

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
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
	// Sources is the number of namespaces with a watch of their own.
	Level   string
	Sources int
	// Faulty is the number of objects with values that DNS can't show; Faults counts each
	// time that an object became faulty.
	Faulty int
	Faults uint64
	// Serial is the zone's SOA serial.
	Serial uint32
	// LastEvent is the last sign of life of the API server, or the last change of the files.
	LastEvent time.Time
	// Programming is dns_programming_duration_seconds by service_kind.
	Programming map[string]stat.Snapshot
	// Requests is rest_client_requests_total.
	Requests []Requests
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
