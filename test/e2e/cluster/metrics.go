package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/nodens-dns/nodens/test/scrape"
)

// maxMetricsSize bounds what is read of an agent's metrics, in bytes: ten times what one of two
// zones has.
const maxMetricsSize = 4 << 20

// MetricSum adds up the samples of a metric at a port of the node that have all the labels,
// each as NAME="VALUE".
func (c *Cluster) MetricSum(ctx context.Context, n *Node, port int, metric string, labels ...string) (sum float64, err error) {
	return c.MetricSumAt(ctx, net.JoinHostPort(n.Addr, strconv.Itoa(port)), metric, labels...)
}

// MetricSumAt is MetricSum at an address with a port, such as a pod's.
func (c *Cluster) MetricSumAt(ctx context.Context, address, metric string, labels ...string) (sum float64, err error) {
	url := "http://" + address + "/metrics"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetricsSize))
	if err != nil {
		return 0, err
	}
	m, err := scrape.Parse(string(text))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	return m.Sum(metric, labels...), nil
}
