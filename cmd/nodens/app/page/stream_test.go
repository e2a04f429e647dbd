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
func (emptySource) Clients(string, string) (*report.Clients, error) {
	return &report.Clients{By: "pod", Clients: make([]report.Client, 200)}, nil
}
func (emptySource) Names(string, string) (*report.Names, error) {
	return &report.Names{Names: make([]report.Name, 100)}, nil
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
	return &stream{page: New(source), parameters: p, out: deadlineWriter{w}, control: http.NewResponseController(deadlineWriter{w}), sent: make(map[string]string)}
}

// deadlineWriter accepts deadlines.
type deadlineWriter struct{ *httptest.ResponseRecorder }

func (deadlineWriter) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkUpdate measures an event of a page on a busy node: with the clients alone, and with everything.
func BenchmarkUpdate(b *testing.B) {
	for name, all := range map[string]bool{"clients": false, "all": true} {
		b.Run(name, func(b *testing.B) {
			s := newStream(emptySource{})
			b.ReportAllocs()
			for b.Loop() {
				if all {
					clear(s.sent)
				}
				if err := s.update(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
