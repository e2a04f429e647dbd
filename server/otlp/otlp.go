// Package otlp sends spans to an OpenTelemetry collector, with OTLP over HTTP.
//
// An [Exporter] belongs to one endpoint. [Exporter.Send] adds a [Span] with its children to a queue. It never blocks:
// spans are dropped and counted while the queue is full. [Exporter.Run] sends the queue in batches, one request at a
// time. A batch that the collector can't take now is sent again, at growing intervals, and dropped after five attempts.
// All that the collector sends is bounded in size and time.
//
// The name of the collector is looked up for each connection, and never before the first span. Queries for this name
// are to have no spans ([Exporter.Own]): else an export could lead to the next one.
package otlp

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxQueuedSpans and maxQueuedBytes bound the queue.
	maxQueuedSpans = 2048
	maxQueuedBytes = 2 << 20
	// maxBatch is the number of spans at which a batch is sent before batchInterval has passed. The last trace of a
	// batch may have more.
	maxBatch      = 512
	batchInterval = time.Second
	// maxAttempts is how often a batch is sent.
	maxAttempts = 5
	// minBackoff and maxBackoff bound the pause after a failure, which doubles with each further one.
	minBackoff = time.Second
	maxBackoff = time.Minute
	// maxRetryAfter bounds the pause that the collector asks for.
	maxRetryAfter = 5 * time.Minute
	// closeTimeout bounds sending the remaining spans when the exporter ends. It is half of what the agent has left for
	// its last queries.
	closeTimeout = 500 * time.Millisecond
)

// Options are the settings of an [Exporter].
type Options struct {
	// Endpoint is the URL for batches.
	Endpoint string
	// Resource describes the program in each batch.
	Resource []Attr
	// Lookup returns the addresses of a host that is not an address; nil: the system's resolver looks it up.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Logger *slog.Logger
}

// Reasons for which spans are dropped.
const (
	queueFull = iota
	notTaken
	refused
	reasons
)

// reasonNames are the values of the metric's label.
var reasonNames = [reasons]string{"queue", "failed", "rejected"}

// Exporter sends spans to one endpoint. It is safe for concurrent use.
type Exporter struct {
	opts   Options
	host   string // of the endpoint, in lower case
	own    string // host in wire form without the root; "" for an address
	client *http.Client
	// interval is batchInterval and jitter is jitter, but in tests.
	interval time.Duration
	jitter   func(time.Duration) time.Duration

	mu           sync.Mutex
	queue        []*Span
	spans, bytes int // in queue
	closed       bool

	wake chan struct{} // there are spans
	full chan struct{} // there are enough for a batch

	sent    atomic.Uint64
	dropped [reasons]atomic.Uint64

	// These belong to Run.
	backoff       time.Duration
	outages       outage.Log
	failing       bool
	droppedBefore atomic.Uint64 // when it began to fail
}

// New returns an exporter. It opens no connection.
func New(opts Options) *Exporter {
	e := &Exporter{opts: opts, interval: batchInterval, jitter: jitter, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	if u, err := url.Parse(opts.Endpoint); err == nil {
		e.host = strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	}
	if _, err := netip.ParseAddr(e.host); err != nil && e.host != "" {
		if name, err := wire.ParseName(e.host); err == nil {
			e.own = string(name[:len(name)-1])
		}
	}
	e.client = newClient(opts.Lookup)
	e.outages.Messages = outage.Messages{
		Start: "sending traces failed", Ongoing: "sending traces still fails", End: "sending traces works again",
	}
	e.outages.Logger, e.outages.Level, e.outages.Fields = opts.Logger, slog.LevelWarn, e.outageFields
	return e
}

// Endpoint returns the URL of the endpoint.
func (e *Exporter) Endpoint() string { return e.opts.Endpoint }

// Own reports whether a query for qname, in lower case and wire form, may be a look-up of the endpoint's host: for its
// name, or for its name followed by a search domain.
func (e *Exporter) Own(qname []byte) bool {
	return e.own != "" && len(qname) > len(e.own) && string(qname[:len(e.own)]) == e.own
}

// Sent returns the number of spans that the collector has taken.
func (e *Exporter) Sent() uint64 { return e.sent.Load() }

// EachDropped calls f for each reason for which spans are dropped, with their number: the queue was full (queue), the
// collector did not take them in time (failed), or it refused them (rejected).
func (e *Exporter) EachDropped(f func(reason string, spans uint64)) {
	for i, name := range reasonNames {
		f(name, e.dropped[i].Load())
	}
}

// Send queues s and its children. It does not block, and keeps s. It returns false if there is no room.
func (e *Exporter) Send(s *Span) bool {
	spans, bytes := s.size()
	e.mu.Lock()
	fits := !e.closed && e.spans+spans <= maxQueuedSpans && e.bytes+bytes <= maxQueuedBytes
	if fits {
		e.queue = append(e.queue, s)
		e.spans, e.bytes = e.spans+spans, e.bytes+bytes
	}
	e.signal()
	e.mu.Unlock()
	if !fits {
		e.dropped[queueFull].Add(uint64(spans))
	}
	return fits
}

// signal makes wake and full hold a value as long as there are spans, and enough of them. e is locked.
func (e *Exporter) signal() {
	set(e.wake, e.spans > 0)
	set(e.full, e.spans >= maxBatch)
}

// set makes c, of capacity 1, hold a value or none. Only one goroutine at a time may call it.
func set(c chan struct{}, value bool) {
	select {
	case <-c:
	default:
	}
	if value {
		c <- struct{}{}
	}
}

// take removes the traces of the next batch from the queue.
func (e *Exporter) take() (batch []*Span, spans int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, bytes := 0, 0
	for ; n < len(e.queue) && spans < maxBatch; n++ {
		s, b := e.queue[n].size()
		spans, bytes = spans+s, bytes+b
	}
	batch = e.queue[:n:n]
	e.queue = append([]*Span(nil), e.queue[n:]...)
	e.spans, e.bytes = e.spans-spans, e.bytes-bytes
	e.signal()
	return batch, spans
}

// Run sends spans until ctx ends, and then the remaining ones within closeTimeout. It is called once.
func (e *Exporter) Run(ctx context.Context) {
	defer e.outages.Stop()
	defer e.client.CloseIdleConnections()
	sending, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancel) })()
	for e.awaitBatch(ctx) {
		e.deliver(ctx, sending)
	}
	e.close()
	for e.deliver(ctx, sending) {
	}
}

// close makes Send drop all further spans.
func (e *Exporter) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// awaitBatch waits until there is a batch to send; false: ctx has ended.
func (e *Exporter) awaitBatch(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-e.wake:
	}
	timer := time.NewTimer(e.interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-e.full:
	case <-timer.C:
	}
	return true
}

// deliver sends the next batch until the collector has taken or refused it; false: there was none. After ctx has ended
// it makes one more attempt. Requests end with the context sending.
func (e *Exporter) deliver(ctx, sending context.Context) bool {
	batch, spans := e.take()
	if spans == 0 {
		return false
	}
	body, err := encode(e.opts.Resource, batch)
	if err != nil { // can't be: all texts are valid
		e.dropped[refused].Add(uint64(spans))
		return true
	}
	for attempt := 1; ; attempt++ {
		stopping := ctx.Err() != nil
		left, failed := e.post(sending, body, spans)
		if failed == nil {
			e.sent.Add(uint64(max(0, left)))
			e.backoff, e.failing = 0, false
			e.outages.Recover(e.outageFields()...)
			return true
		}
		last := attempt == maxAttempts || stopping || !failed.again
		if last {
			e.dropped[failed.reason()].Add(uint64(spans))
		}
		e.fail(ctx, failed)
		if last {
			return true
		}
	}
}

// fail logs a failure and pauses after it.
func (e *Exporter) fail(ctx context.Context, failed *failure) {
	if !e.failing {
		e.failing = true
		e.droppedBefore.Store(e.droppedTotal())
	}
	if ctx.Err() != nil {
		return
	}
	e.outages.Fail(failed.err, e.outageFields()...)
	// What the collector asks for, but not less than what grows with each failure.
	e.backoff = min(max(2*e.backoff, minBackoff), maxBackoff)
	timer := time.NewTimer(max(e.jitter(e.backoff), min(failed.after, maxRetryAfter)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// outageFields returns the log fields of an outage: the endpoint, and the spans dropped since its start.
func (e *Exporter) outageFields() []any {
	return []any{"endpoint", e.opts.Endpoint, "dropped", e.droppedTotal() - e.droppedBefore.Load()}
}

func (e *Exporter) droppedTotal() (n uint64) {
	for i := range e.dropped {
		n += e.dropped[i].Load()
	}
	return n
}
