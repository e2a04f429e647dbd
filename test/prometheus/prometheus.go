package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// PrometheusConfig returns a configuration file for Prometheus with these jobs, which are scraped
// every second by default, and these rule files.
func PrometheusConfig(jobs []ScrapeConfig, rules ...string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"global":         map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files":     rules,
		"scrape_configs": jobs,
	})
}

// PrometheusArgs returns the arguments of a Prometheus that serves its API at addr, reads the
// configuration file config and stores its data in dir.
func PrometheusArgs(config, dir, addr string) []string {
	return []string{
		"--config.file=" + config, "--storage.tsdb.path=" + dir, "--web.listen-address=" + addr, "--log.level=warn",
	}
}

// Prometheus is a running Prometheus. It is safe for concurrent use.
type Prometheus struct {
	// URL is the base URL of its HTTP API, without a path.
	URL string
	// Client sends the requests; nil for http.DefaultClient.
	Client *http.Client
}

// Sample is one element of an instant vector.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// errNoData means that the result of an expression is empty.
var errNoData = errors.New("no data")

// QueryData evaluates an expression. It fails if there is no value other than NaN, because a
// panel would be empty.
func (s Prometheus) QueryData(ctx context.Context, expr string) ([]Sample, error) {
	all, err := s.Query(ctx, expr)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if !math.IsNaN(v.Value) {
			return all, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", errNoData, expr)
}

// WithoutData returns the queries that have no data (see [Prometheus.QueryData]), or all of them on
// error.
func (s Prometheus) WithoutData(ctx context.Context, queries []Query) (left []Query, err error) {
	for _, q := range queries {
		switch _, err := s.QueryData(ctx, q.Expand()); {
		case errors.Is(err, errNoData):
			left = append(left, q)
		case err != nil:
			return queries, fmt.Errorf("%s, %s: %w", q.Dashboard, q.Panel, err)
		}
	}
	return left, nil
}

// Query evaluates an expression whose result is an instant vector.
func (s Prometheus) Query(ctx context.Context, expr string) ([]Sample, error) {
	var data struct {
		ResultType string `json:"resultType"`
		Result     []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	}
	if err := s.get(ctx, "/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	if data.ResultType != "vector" {
		return nil, fmt.Errorf("%s is a %s, not a vector", expr, data.ResultType)
	}
	all := make([]Sample, 0, len(data.Result))
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expr, err)
		}
		all = append(all, Sample{r.Metric, v})
	}
	return all, nil
}

const (
	// maxReplySize is the maximum size of a reply, in bytes.
	maxReplySize = 4 << 20
	// queryTimeout bounds a query. It is twice Prometheus' own limit, so that Prometheus times out
	// first and reports it.
	queryTimeout = 4 * time.Minute
)

// get sends a request to the API and decodes the data of the reply.
func (s Prometheus) get(ctx context.Context, path string, into any) error {
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var reply struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReplySize)).Decode(&reply); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if reply.Status != "success" {
		return errors.New(reply.Error)
	}
	return json.Unmarshal(reply.Data, into)
}
