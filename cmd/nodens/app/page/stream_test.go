// These tests use stream, which is not exported.

package page

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

// emptySource is an agent without anything to show.
type emptySource struct{}

func (emptySource) Status() *report.Status       { return new(report.Status) }
func (emptySource) Upstreams() *report.Upstreams { return new(report.Upstreams) }
func (emptySource) Clients(_, _ string, limit int) (*report.Clients, error) {
	return &report.Clients{By: "pod", Clients: make([]report.Client, min(200, limit))}, nil
}
func (emptySource) Names(_, _ string, limit int) (*report.Names, error) {
	return &report.Names{Names: make([]report.Name, min(100, limit))}, nil
}
func (emptySource) Explain(url.Values) (*report.Explanation, error) { return nil, nil }
func (emptySource) LastSample() time.Time                           { return time.Time{} }
func (emptySource) History() History {
	h := History{Samples: make([]Sample, HistoryLength)}
	for i := range h.Samples {
		n := uint32(i * i % 97)
		h.Samples[i] = Sample{Cluster: n, Cache: n + 3, Upstream: n / 2, Kernel: n, NXDomain: n / 3, P50: 0.001 * float32(i%4+1), P99: 0.004 * float32(i%3+1)}
	}
	return h
}

func newStream(source Source) *stream {
	p, _ := parseParameters(nil)
	w := httptest.NewRecorder()
	page := New(source)
	return &stream{page: page, content: page.contents.open(p), out: deadlineWriter{w}, control: http.NewResponseController(deadlineWriter{w})}
}

// deadlineWriter accepts deadlines.
type deadlineWriter struct{ *httptest.ResponseRecorder }

func (deadlineWriter) SetWriteDeadline(time.Time) error { return nil }

// countingSource counts how often the clients and the history are read.
type countingSource struct {
	emptySource
	clients, histories *int
}

func (s countingSource) Clients(by, window string, limit int) (*report.Clients, error) {
	*s.clients++
	return s.emptySource.Clients(by, window, limit)
}

func (s countingSource) History() History {
	*s.histories++
	return s.emptySource.History()
}

// TestSharedContent: streams with the same parameters render once for all of them, and nobody renders when there is no
// stream. A stream sends what has changed since its last event. The advice reads the clients, too, with each sample.
func TestSharedContent(t *testing.T) {
	clients, histories := 0, 0
	p := New(countingSource{emptySource{}, &clients, &histories})
	v, _ := parseParameters(nil)
	other, _ := parseParameters(url.Values{"by": {"workload"}})
	a, b, c := p.contents.open(v), p.contents.open(v), p.contents.open(other)
	if a != b || a == c {
		t.Fatal("streams with the same parameters have not the same content, or others do")
	}
	now := time.Unix(1000, 0)
	sent := make(map[*content]uint64)
	update := func(c *content, at time.Time) int {
		t.Helper()
		changed, version, err := c.since(sent[c], p, at)
		if err != nil {
			t.Fatal(err)
		}
		sent[c] = version
		return len(changed)
	}
	if n := update(a, now); n < 20 || clients != 2 || histories != 1 {
		t.Errorf("the first event has %d parts; %d reads of the clients, %d of the history", n, clients, histories)
	}
	if n := update(a, now.Add(refreshInterval-1)); n != 0 || clients != 2 {
		t.Errorf("in the same interval: %d parts, %d reads of the clients", n, clients)
	}
	if n := update(a, now.Add(refreshInterval)); n != 0 || clients != 3 || histories != 1 {
		t.Errorf("without a change: %d parts; %d reads of the clients, %d of the history", n, clients, histories)
	}
	sent[a] = 0 // another stream
	if n := update(a, now.Add(refreshInterval)); n < 20 || clients != 3 {
		t.Errorf("another stream: %d parts, %d reads of the clients", n, clients)
	}
	for _, x := range []*content{a, b, c} {
		p.contents.close(x)
	}
	if n := len(p.contents.all); n != 0 {
		t.Errorf("%d contents are left", n)
	}
}

// BenchmarkUpdate measures an event of a page on a busy node: with the clients alone, and with everything.
func BenchmarkUpdate(b *testing.B) {
	for name, all := range map[string]bool{"clients": false, "all": true} {
		b.Run(name, func(b *testing.B) {
			s := newStream(emptySource{})
			now := time.Unix(1000, 0)
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(refreshInterval)
				if all {
					s.content.version, s.sent = 0, 0
				}
				if err := s.update(now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
