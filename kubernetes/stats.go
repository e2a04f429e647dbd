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
	// Services, Slices, Endpoints and Namespaces are what the index holds.
	// Endpoints counts addresses, so one in two services is two.
	Services, Slices, Endpoints, Namespaces, Pods int
	// Level is how much of the cluster's slices is in view: node, wide or all.
	// Sources are the namespaces whose slices are followed.
	Level   string
	Sources int
	// Faulty is the number of objects in view that DNS can't show in full;
	// Faults counts every time one came to be so.
	Faulty int
	Faults uint64
	// Serial is the zone's SOA serial.
	Serial uint32
	// LastEvent is when the API server or the files last said anything.
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

// programmingBounds are 1 ms doubled 19 times, about 9 minutes: CoreDNS's, which
// dashboards of the scalability SLO are made for.
var programmingBounds = stat.ExponentialBuckets(0.001, 20)

// requestCounter counts HTTP requests by outcome; safe for concurrent use.
type requestCounter struct {
	mu     sync.Mutex
	counts map[Requests]uint64 // Count is 0 in the keys
}

// wrap gives a transport that counts what goes through next.
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
