// Package collector is an OpenTelemetry collector for tests: it takes spans by OTLP over HTTP on loopback, and keeps
// them decoded. A test can replace its replies.
package collector

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that was received.
type Span struct {
	Trace, ID, Parent string // hexadecimal; Parent is "" for none
	Name              string
	Kind              int
	Start, End        time.Time
	Attrs, Resource   map[string]any // string, int64, float64 or bool
	Failed            bool
	Message           string
}

// Collector is a collector that ends with the test. It is safe for concurrent use.
type Collector struct {
	// URL is the endpoint.
	URL string

	tb       testing.TB
	server   *httptest.Server
	mu       sync.Mutex
	spans    []Span
	requests int
	conns    map[string]bool
	reply    func(w http.ResponseWriter, r *http.Request)
}

// Start starts a collector that takes all spans.
func Start(tb testing.TB) *Collector {
	tb.Helper()
	c := &Collector{tb: tb, conns: make(map[string]bool)}
	c.server = httptest.NewServer(http.HandlerFunc(c.serve))
	tb.Cleanup(c.Close)
	c.URL = c.server.URL + "/v1/traces"
	return c
}

// Close ends the collector: connections to it are refused.
func (c *Collector) Close() {
	c.server.CloseClientConnections()
	c.server.Close()
}

// SetReply replaces the replies; nil takes all spans. Spans of a request with another reply are not kept.
func (c *Collector) SetReply(reply func(w http.ResponseWriter, r *http.Request)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reply = reply
}

// Spans returns the spans that it has taken.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Named returns the spans with a name that it has taken.
func (c *Collector) Named(name string) []Span {
	return slices.DeleteFunc(c.Spans(), func(s Span) bool { return s.Name != name })
}

// Requests returns the number of requests.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests
}

// Conns returns the number of connections with requests.
func (c *Collector) Conns() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

func (c *Collector) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests++
	c.conns[r.RemoteAddr] = true
	reply := c.reply
	c.mu.Unlock()
	if reply != nil {
		reply(w, r)
		return
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.tb.Errorf("collector: %s %s with %q", r.Method, r.URL, r.Header)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the exporter has ended
	}
	var message collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &message); err != nil {
		c.tb.Errorf("collector: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range message.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, span(s, attrs(of.GetResource().GetAttributes())))
			}
		}
	}
}

func span(s *tracepb.Span, resource map[string]any) Span {
	return Span{
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Name: s.GetName(), Kind: int(s.GetKind()), Attrs: attrs(s.GetAttributes()), Resource: resource,
		Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
		Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, Message: s.GetStatus().GetMessage(),
	}
}

func attrs(list []*commonpb.KeyValue) map[string]any {
	m := make(map[string]any)
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			m[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[kv.GetKey()] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			m[kv.GetKey()] = v.DoubleValue
		case *commonpb.AnyValue_BoolValue:
			m[kv.GetKey()] = v.BoolValue
		}
	}
	return m
}
