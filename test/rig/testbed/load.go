package testbed

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/scrape"
)

// LoadJob returns the load of a busy node's pods for the servers, which are addresses without a port:
// ten thousand queries a second over UDP from changing ports, and over persistent and one-shot TCP
// connections. One query in twenty is for a name that is not cached.
func LoadJob(servers ...string) load.Job {
	j := load.Job{
		Local: FromAgent, Cluster: FromCluster,
		Names: 5000, FreshEvery: 20, Zone: Zone + ".", Duration: 5 * time.Minute,
		Rate: 9000, Sockets: 256, QueriesPerSocket: 64, Streams: 8, StreamRate: 100, OneShots: 200,
	}
	for _, s := range servers {
		j.Servers = append(j.Servers, netip.AddrPortFrom(netip.MustParseAddr(s), 53))
	}
	return j
}

// StartLoad starts the job in the pod. program calls [load.Serve] if its first argument is "load".
func (l *Network) StartLoad(j load.Job, program string) (*load.Client, error) {
	return load.Start(j, "ip", "netns", "exec", l.Pod, program, "load")
}

// warmPasses bounds the work of WarmCache on a machine that is too busy for it.
const warmPasses = 10

// WarmCache sends one query over UDP for each name of the job, at half its rate, and repeats that until
// all are answered. The job itself, with an empty cache, sends more misses at once than an agent lets
// wait for an upstream that is not scheduled for a moment: it answers the others with SERVFAIL.
func (l *Network) WarmCache(j load.Job, program string) error {
	j.FreshEvery, j.Streams, j.OneShots = 0, 0, 0
	j.Rate = max(j.Rate/2, 1)
	j.Duration = time.Duration(j.Names) * time.Second / time.Duration(j.Rate)
	var r *load.Report
	for range warmPasses {
		c, err := l.StartLoad(j, program)
		if err != nil {
			return err
		}
		if r, err = c.Wait(); err != nil || r.UDP.Failed() == 0 {
			return err
		}
	}
	return fmt.Errorf("warming up: %s", r)
}

// CacheStats has the counters of a server's caches.
type CacheStats struct{ Requests, Hits float64 }

// Since returns the difference from b.
func (a CacheStats) Since(b CacheStats) CacheStats {
	return CacheStats{a.Requests - b.Requests, a.Hits - b.Hits}
}

// Ratio returns the share of hits.
func (a CacheStats) Ratio() float64 { return a.Hits / a.Requests }

// CacheStats reads the metrics of the server in the node.
func (l *Network) CacheStats() (CacheStats, error) {
	m, err := l.Metrics()
	return CacheStats{m.Sum("coredns_cache_requests_total"), m.Sum("coredns_cache_hits_total")}, err
}

// Metrics returns the values of all series of the server in the node.
func (l *Network) Metrics() (scrape.Metrics, error) {
	client := http.Client{Timeout: scrapeTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return Dial(l.Node, network, address)
		},
	}}
	// The agent ignores the parameter, which tells the URL from those in other networks.
	text, err := scrape.Text(context.Background(), &client, "http://127.0.0.1:9253/metrics?node="+l.Node)
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	return scrape.Parse(text)
}

// scrapeTimeout bounds a scrape.
const scrapeTimeout = 30 * time.Second
