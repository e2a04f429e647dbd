// Inside the package: the tests replace the HTTP transport.

package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/nodens-dns/nodens/test/testlog"
)

// transport is a collector without a network. Each request is a line with its time.
type transport struct {
	began time.Time
	reply func(n int) (reply, error) // to the n-th request, from 1
	lines []string
}

// reply is a reply with one header and a body.
type reply struct {
	code          int
	header, value string
	body          proto.Message
}

func (r *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var m collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	r.lines = append(r.lines, fmt.Sprintf("%v: %d", time.Since(r.began).Round(time.Second), len(m.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans())))
	with, err := r.reply(len(r.lines))
	if err != nil {
		return nil, err
	}
	var b []byte
	if with.body != nil {
		if b, err = proto.Marshal(with.body); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: with.code, Status: fmt.Sprint(with.code), Header: http.Header{with.header: {with.value}}, Body: io.NopCloser(bytes.NewReader(b))}, nil
}

// TestRetry: when batches are sent, and how often.
func TestRetry(t *testing.T) {
	always := func(code int) func(int) (reply, error) {
		return func(int) (reply, error) { return reply{code: code}, nil }
	}
	for name, test := range map[string]struct {
		reply   func(n int) (reply, error)
		want    string // the requests
		dropped string
		log     string // at the end
	}{
		"taken": {always(200), "1s: 1, 11s: 512, 12s: 188", "", ""},
		// The pauses are half of 1, 2, 4, 8 and 16 seconds, and the last one also holds the next batch back.
		"unavailable": {always(503), "1s: 1, 2s: 1, 3s: 1, 5s: 1, 9s: 1", "failed 701", "sending traces failed"},
		"rejected":    {always(400), "1s: 1, 11s: 512, 13s: 188", "rejected 701", "sending traces failed"},
		"asks for a pause": {func(n int) (reply, error) {
			if n == 1 {
				return reply{code: 429, header: "Retry-After", value: "60"}, nil
			}
			return reply{code: 200}, nil
		}, "1s: 1, 1m1s: 1, 1m1s: 512, 1m2s: 188", "", "sending traces works again"},
		"asks for an hour": {func(n int) (reply, error) {
			if n == 1 {
				return reply{code: 503, header: "Retry-After", value: "3600"}, nil
			}
			return reply{code: 200}, nil
		}, "1s: 1, 5m1s: 1", "", "sending traces works again"},
		"a part": {func(int) (reply, error) {
			return reply{code: 200, body: &collectorpb.ExportTraceServiceResponse{PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "too old"}}}, nil
		}, "1s: 1, 11s: 512, 12s: 188", "rejected 3", ""},
		"no reply": {func(n int) (reply, error) {
			if n < 3 {
				return reply{}, errors.New("connection reset")
			}
			return reply{code: 200}, nil
		}, "1s: 1, 2s: 1, 3s: 1, 11s: 512, 12s: 188", "", "sending traces works again"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log testlog.Buffer
				e := New(Options{Endpoint: "http://192.0.2.1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
				e.jitter = func(d time.Duration) time.Duration { return d / 2 }
				r := &transport{began: time.Now(), reply: test.reply}
				e.client.Transport = r
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { e.Run(ctx); close(done) }()
				e.Send(new(Span))
				time.Sleep(10*time.Second + 500*time.Millisecond)
				for range 700 {
					e.Send(new(Span))
				}
				time.Sleep(10 * time.Minute)
				cancel()
				<-done
				if got := strings.Join(r.lines, ", "); !strings.HasPrefix(got, test.want) {
					t.Errorf("requests %s; want %s", got, test.want)
				}
				var drops []string
				e.EachDropped(func(reason string, n uint64) {
					if n > 0 {
						drops = append(drops, fmt.Sprintf("%s %d", reason, n))
					}
				})
				if got := strings.Join(drops, ", "); !strings.HasPrefix(got, test.dropped) || test.dropped == "" && got != "" {
					t.Errorf("dropped %s; want %s", got, test.dropped)
				}
				if !strings.Contains(log.String(), test.log) || test.log == "" && log.String() != "" {
					t.Errorf("logged %s, want %q", log.String(), test.log)
				}
			})
		})
	}
}

// TestOutage: an outage of an hour is a request a minute, and a line a minute.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Buffer
		e := New(Options{Endpoint: "http://192.0.2.1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r := &transport{began: time.Now(), reply: func(int) (reply, error) { return reply{}, errors.New("no route") }}
		e.client.Transport = r
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { e.Run(ctx); close(done) }()
		for range 3600 {
			e.Send(new(Span))
			time.Sleep(time.Second)
		}
		cancel()
		<-done
		if n := len(r.lines); n < 60 || n > 140 {
			t.Errorf("%d requests in an hour", n)
		}
		if n := strings.Count(log.String(), "\n"); n < 58 || n > 62 {
			t.Errorf("%d lines in an hour:\n%s", n, log.String())
		}
	})
}

// TestStopTimeout: a collector that hangs delays the end by half a second.
func TestStopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{Endpoint: "http://192.0.2.1", Logger: slog.New(slog.DiscardHandler)})
		e.client.Transport = hang{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { e.Run(ctx); close(done) }()
		for range 2000 {
			e.Send(new(Span))
		}
		time.Sleep(5 * time.Second)
		began := time.Now()
		cancel()
		<-done
		if took := time.Since(began); took != closeTimeout {
			t.Errorf("the end took %v", took)
		}
	})
}

// hang is a collector that does not answer.
type hang struct{}

func (hang) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// TestRetryAfter: both forms of the header.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "0": 0, "120": 2 * time.Minute, "99999999999": 0,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	for range 100 {
		if d := jitter(time.Second); d < time.Second/2 || d > time.Second {
			t.Errorf("jitter of a second: %v", d)
		}
	}
}
