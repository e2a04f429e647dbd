package otlp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/server/otlp"
	"github.com/nodens-dns/nodens/test/collector"
	"github.com/nodens-dns/nodens/test/testlog"
)

// hangTimeout ends a test that would hang; no test measures it.
const hangTimeout = 30 * time.Second

var start = time.Unix(1_700_000_000, 123_456_789)

// trace is a trace of two spans.
func trace(name string) *otlp.Span {
	return &otlp.Span{
		Name: name, Kind: otlp.Server, Start: start, End: start.Add(time.Second), Err: "it failed\xff",
		Attrs:    []otlp.Attr{otlp.Text("text", "a\xffb"), otlp.Int("number", -7), otlp.Seconds("time", 1500*time.Millisecond), otlp.Flag("flag")},
		Children: []*otlp.Span{{Name: name + " child", Kind: otlp.Client, Start: start, End: start.Add(time.Millisecond)}},
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hangTimeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// run starts an exporter to endpoint until stop is called, or the test ends.
func run(t *testing.T, endpoint string, log io.Writer) (e *otlp.Exporter, stop func()) {
	t.Helper()
	e = otlp.New(otlp.Options{
		Endpoint: endpoint, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Resource: []otlp.Attr{otlp.Text("service.name", "nodens")},
	})
	e.SetInterval(time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return e, stop
}

// dropped returns the counters as text.
func dropped(e *otlp.Exporter) string {
	var list []string
	e.EachDropped(func(reason string, n uint64) { list = append(list, fmt.Sprintf("%s %d", reason, n)) })
	return strings.Join(list, ", ")
}

// TestExport: what arrives is what was sent, over one connection.
func TestExport(t *testing.T) {
	c := collector.Start(t)
	e, stop := run(t, c.URL, io.Discard)
	for i := range 3 {
		if !e.Send(trace(fmt.Sprintf("query %d", i))) {
			t.Errorf("trace %d is dropped", i)
		}
		eventually(t, "the spans to arrive", func() bool { return len(c.Spans()) == 2*i+2 })
	}
	stop()
	traces := make(map[string]bool)
	for i := range 3 {
		root, child := c.Spans()[2*i], c.Spans()[2*i+1]
		name := fmt.Sprintf("query %d", i)
		if len(root.Trace) != 32 || len(root.ID) != 16 || len(child.ID) != 16 || child.Parent != root.ID || child.Trace != root.Trace || traces[root.Trace] {
			t.Errorf("identities of %+v and %+v", root, child)
		}
		traces[root.Trace] = true
		root.Trace, root.ID, child.Trace, child.ID, child.Parent = "", "", "", "", ""
		resource := map[string]any{"service.name": "nodens"}
		want := []collector.Span{{
			Name: name, Kind: 2, Start: start, End: start.Add(time.Second), Resource: resource, Failed: true, Message: "it failed\uFFFD",
			Attrs: map[string]any{"text": "a\uFFFDb", "number": int64(-7), "time": 1.5, "flag": true},
		}, {Name: name + " child", Kind: 3, Start: start, End: start.Add(time.Millisecond), Resource: resource, Attrs: map[string]any{}}}
		if diff := cmp.Diff(want, []collector.Span{root, child}); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if n := c.Conns(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	if e.Sent() != 6 || dropped(e) != "queue 0, failed 0, rejected 0" {
		t.Errorf("sent %d, dropped %s", e.Sent(), dropped(e))
	}
}

// TestStop: the end of an exporter sends what waits, and further spans are dropped.
func TestStop(t *testing.T) {
	c := collector.Start(t)
	e, stop := run(t, c.URL, io.Discard)
	for i := range 700 { // more than a batch
		e.Send(trace(fmt.Sprint(i)))
	}
	stop()
	if n := len(c.Spans()); n != 1400 {
		t.Errorf("%d spans arrived, want 1400", n)
	}
	if e.Send(trace("late")) || dropped(e) != "queue 2, failed 0, rejected 0" {
		t.Errorf("dropped %s", dropped(e))
	}
}

// TestQueue: the queue has bounds of spans and of bytes.
func TestQueue(t *testing.T) {
	e := otlp.New(otlp.Options{Endpoint: "http://192.0.2.1", Logger: slog.New(slog.DiscardHandler)})
	for range 1024 {
		if !e.Send(trace("")) {
			t.Fatal("dropped")
		}
	}
	if e.Send(trace("")) || dropped(e) != "queue 2, failed 0, rejected 0" {
		t.Errorf("dropped %s", dropped(e))
	}
	e = otlp.New(otlp.Options{Endpoint: "http://192.0.2.1", Logger: slog.New(slog.DiscardHandler)})
	large := &otlp.Span{Attrs: []otlp.Attr{otlp.Text("x", strings.Repeat("x", 1<<20))}}
	if !e.Send(large) || e.Send(large) {
		t.Error("two spans of 1 MiB with the rest are within 2 MiB, or one is not")
	}
}

// TestOwn: which queries may be look-ups of the collector.
func TestOwn(t *testing.T) {
	for endpoint, want := range map[string]map[string]bool{
		"http://Collector.Test.:4318/x": {"\x09collector\x04test\x00": true, "\x09collector\x04test\x03svc\x00": true, "\x04test\x00": false, "\x01x\x09collector\x04test\x00": false, "\x00": false},
		"http://127.0.0.1:4318":         {"\x03127\x010\x010\x011\x00": false, "\x00": false},
		"http://[::1]:4318":             {"\x00": false},
	} {
		e := otlp.New(otlp.Options{Endpoint: endpoint, Logger: slog.New(slog.DiscardHandler)})
		for name, own := range want {
			if e.Own([]byte(name)) != own {
				t.Errorf("%s, %q: %v", endpoint, name, !own)
			}
		}
	}
}

// flood sends traces until the queue is full, while the collector takes none, and reports how much the heap has
// grown.
func flood(t *testing.T, e *otlp.Exporter) (grown int64) {
	t.Helper()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 20_000 {
		e.Send(trace(fmt.Sprint(i)))
	}
	return heap() - before
}

// TestHostileCollector: whatever a collector does, memory is bounded, spans are dropped and counted, sending never blocks, and
// the exporter ends.
func TestHostileCollector(t *testing.T) {
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	for name, reply := range map[string]func(w http.ResponseWriter, r *http.Request){
		"hangs": func(_ http.ResponseWriter, r *http.Request) { wait(ended, r) },
		"hangs later": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			flush(w)
			wait(ended, r)
		},
		"is busy": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		},
		"fails":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"refuses": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) },
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusPermanentRedirect)
		},
		"says no end": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		},
		"disconnects": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"has a header without end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := collector.Start(t)
			c.SetReply(reply)
			var log testlog.Buffer
			e, stop := run(t, c.URL, &log)
			e.Send(trace("first"))
			eventually(t, "a request", func() bool { return c.Requests() > 0 })
			if n := flood(t, e); n > 8<<20 {
				t.Errorf("the heap has grown by %d bytes", n)
			}
			if e.Sent() != 0 || !strings.HasPrefix(dropped(e), "queue ") || strings.HasPrefix(dropped(e), "queue 0") {
				t.Errorf("sent %d, dropped %s", e.Sent(), dropped(e))
			}
			if !strings.HasPrefix(name, "hangs") {
				eventually(t, "a log line", func() bool { return strings.Contains(log.String(), "sending traces failed") })
			}
			stop()
			total := 0
			e.EachDropped(func(_ string, n uint64) { total += int(n) })
			if total != 2*20_001 {
				t.Errorf("%d spans are counted as dropped, want all of %d", total, 2*20_001)
			}
			if n := strings.Count(log.String(), "sending traces"); n > 1 {
				t.Errorf("%d lines:\n%s", n, log.String())
			}
		})
	}
}

// wait waits until the test or the request ends.
func wait(ended <-chan struct{}, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not noticed
	select {
	case <-ended:
	case <-r.Context().Done():
	}
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// TestUnreachable: a refused connection and a failed look-up are failures like others.
func TestUnreachable(t *testing.T) {
	c := collector.Start(t)
	c.Close()
	var log testlog.Buffer
	e, stop := run(t, c.URL, &log)
	e.Send(trace("a"))
	eventually(t, "a log line", func() bool { return strings.Contains(log.String(), "connection refused") })
	stop()
	if dropped(e) != "queue 0, failed 2, rejected 0" {
		t.Errorf("dropped %s", dropped(e))
	}
	e = otlp.New(otlp.Options{
		Endpoint: "http://collector.test:4318", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Lookup: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("not known yet") },
	})
	e.SetInterval(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { e.Run(ctx); close(done) }()
	e.Send(trace("a"))
	eventually(t, "a log line", func() bool { return strings.Contains(log.String(), "not known yet") })
	cancel()
	<-done
}

// TestLookup: the addresses of a name are tried one after the other.
func TestLookup(t *testing.T) {
	c := collector.Start(t)
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(c.URL, "http://"), "/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 10)
	e := otlp.New(otlp.Options{
		Endpoint: "http://collector.test:" + port + "/v1/traces", Logger: slog.New(slog.DiscardHandler),
		Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			asked <- host
			return []netip.Addr{netip.MustParseAddr("127.0.0.99"), netip.MustParseAddr("127.0.0.1")}, nil
		},
	})
	select {
	case host := <-asked:
		t.Errorf("%s is looked up before the first span", host)
	default:
	}
	e.Send(trace("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.Run(ctx)
	if len(c.Spans()) != 2 || <-asked != "collector.test" {
		t.Errorf("%d spans", len(c.Spans()))
	}
}
