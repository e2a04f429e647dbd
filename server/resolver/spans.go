package resolver

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/otlp"
	"github.com/nodens-dns/nodens/server/tail"
	"github.com/nodens-dns/nodens/upstream"
)

// Tracing selects queries of a zone for export. Only queries that have waited for an upstream or for the view of the
// cluster have spans.
type Tracing struct {
	To *otlp.Exporter
	// Every says that one in so many is selected; 0 is none. Failed queries are always selected.
	Every int64
	// Slow is the least latency of queries that are always selected; 0 is none.
	Slow time.Duration
}

// reason returns why r is selected, "" if it is not. answered says that it has a reply.
func (t *Tracing) reason(r *Request, answered bool) string {
	switch {
	case t.To.Own(r.Query.Name()):
		return ""
	case !answered || r.reply.Rcode() == wire.ServFail:
		return "failed"
	case t.Slow > 0 && r.Latency >= t.Slow:
		return "slow"
	case t.Every == 1 || t.Every > 1 && rand.N(t.Every) == 0: //nolint:gosec // a sample needs no secret
		return "sampled"
	}
	return ""
}

// exportSpans exports the spans of r, which is finished and has a recording, if its zone selects it.
func (r *Request) exportSpans(answered bool) {
	rec := r.ownLookups.recording
	r.ownLookups.recording = nil
	if t, w := r.zone.Tracing, &r.ownLookups.waits; t != nil && (w.asked || w.view > 0) {
		if why := t.reason(r, answered); why != "" {
			t.To.Send(r.span(rec, answered, why))
		}
	}
	rec.release()
}

// span returns the span of r with a child for each wait.
func (r *Request) span(rec *recording, answered bool, why string) *otlp.Span {
	q := r.describe(answered)
	s := &otlp.Span{Name: "dns.query", Kind: otlp.Server, Start: q.Time, End: q.Time.Add(r.Latency), Attrs: queryAttrs(q), Err: q.Err}
	s.Attrs = append(s.Attrs, otlp.Text("nodens.selected", why))
	switch {
	case !answered:
		s.Attrs = append(s.Attrs, otlp.Text("error.type", "no_reply"))
	case r.reply.Rcode() == wire.ServFail:
		s.Attrs = append(s.Attrs, otlp.Text("error.type", q.Rcode))
		if s.Err == "" {
			s.Err = q.Rcode
		}
	}
	spans := spanBuilder{root: s, question: wire.Name(r.Query.Name()), now: time.Now(), clock: clock.Now()}
	attempts, more := rec.attempts.Append(nil)
	for i := range rec.waits[:rec.n] {
		s.Children = append(s.Children, spans.wait(&rec.waits[i], i, attempts))
	}
	if more += rec.more; more > 0 {
		s.Attrs = append(s.Attrs, otlp.Int("nodens.omitted_spans", more))
	}
	return s
}

// queryAttrs returns the attributes of a finished query.
func queryAttrs(q *tail.Query) []otlp.Attr {
	attrs := []otlp.Attr{
		otlp.Text("dns.question.name", questionName(q.Name)), otlp.Text("nodens.question.type", q.Type),
		otlp.Text("network.transport", q.Proto), otlp.Text("network.protocol.name", "dns"),
		otlp.Text("client.address", q.Client.Addr().WithZone("").String()), otlp.Int("client.port", int(q.Client.Port())),
	}
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, otlp.Text(key, value))
		}
	}
	if q.Pod != "" {
		add("k8s.namespace.name", q.Namespace)
	} else {
		add("nodens.client", strings.Trim(q.Namespace, "()"))
	}
	add("k8s.pod.name", q.Pod)
	add("nodens.workload", q.Workload)
	add("nodens.rcode", q.Rcode)
	add("nodens.zone", q.Zone)
	add("nodens.view", q.View)
	add("nodens.source", q.Source)
	add("nodens.cache", q.Cache)
	add("nodens.search_path", q.SearchPath)
	if q.Age >= 0 {
		attrs = append(attrs, otlp.Seconds("nodens.cache.age", q.Age))
	}
	return attrs
}

// questionName returns a name without the final dot, as OpenTelemetry's conventions write it.
func questionName(name string) string {
	if name == "." {
		return name
	}
	return strings.TrimSuffix(name, ".")
}

// spanBuilder makes the spans below root. now and clock are the same time.
type spanBuilder struct {
	root     *otlp.Span
	question wire.Name
	now      time.Time
	clock    time.Duration
}

// at returns a time by package clock as wall time, within root's.
func (b *spanBuilder) at(t time.Duration) time.Time { return b.within(b.now.Add(t - b.clock)) }

// atTime returns a time as wall time, within root's, whatever has changed the wall clock since.
func (b *spanBuilder) atTime(t time.Time) time.Time { return b.within(b.now.Add(t.Sub(b.now))) }

// within returns t, or root's nearest time.
func (b *spanBuilder) within(t time.Time) time.Time {
	switch {
	case t.Before(b.root.Start):
		return b.root.Start
	case t.After(b.root.End):
		return b.root.End
	}
	return t
}

// wait returns the span of the i-th wait, with its attempts among all attempts of the query.
func (b *spanBuilder) wait(w *recordedWait, i int, attempts []upstream.Attempt) *otlp.Span {
	s := &otlp.Span{Name: "dns.forward", Kind: otlp.Internal, Start: b.at(w.began), End: b.root.End}
	if w.forView {
		s.Name = "kubernetes.view"
	}
	if w.ended != 0 {
		s.End = b.at(w.ended)
	}
	if name := wire.Name(w.name); name != b.question {
		s.Attrs = append(s.Attrs, otlp.Text("dns.question.name", questionName(name.String())), otlp.Text("nodens.question.type", wire.TypeName(w.qtype)))
	}
	if w.err != nil {
		s.Err = w.err.Error()
		s.Attrs = append(s.Attrs, otlp.Text("error.type", errorType(w.err)))
	}
	for j := range attempts {
		if attempts[j].Exchange == i {
			s.Children = append(s.Children, b.attempt(&attempts[j]))
		}
	}
	addSource(s, w)
	return s
}

// addSource adds where the answer came from if it was not this query's exchange.
func addSource(s *otlp.Span, w *recordedWait) {
	switch {
	case w.forView:
	case w.hit:
		s.Attrs = append(s.Attrs, otlp.Text("nodens.cache", cacheHit))
	case w.err == nil && len(s.Children) == 0:
		s.Attrs = append(s.Attrs, otlp.Flag("nodens.joined"))
	}
}

// attempt returns the span of a query to an upstream.
func (b *spanBuilder) attempt(a *upstream.Attempt) *otlp.Span {
	s := &otlp.Span{Name: "dns.upstream", Kind: otlp.Client, Start: b.atTime(a.Start), End: b.root.End, Attrs: []otlp.Attr{
		otlp.Text("server.address", a.Server.Addr().WithZone("").String()), otlp.Int("server.port", int(a.Server.Port())),
		otlp.Text("network.transport", transportOf(a.Protocol)), otlp.Text("network.protocol.name", "dns"),
		otlp.Text("nodens.upstream.protocol", a.Protocol),
	}}
	if !a.End.IsZero() {
		s.End = b.atTime(a.End)
	}
	for _, is := range []struct {
		key string
		set bool
	}{{"nodens.upstream.hedge", a.Hedge}, {"nodens.upstream.used", a.Used}, {"nodens.upstream.cancelled", a.Cancelled}} {
		if is.set {
			s.Attrs = append(s.Attrs, otlp.Flag(is.key))
		}
	}
	if a.Retry != "" {
		s.Attrs = append(s.Attrs, otlp.Text("nodens.upstream.retry", a.Retry))
	}
	addResult(s, a)
	return s
}

// addResult adds the reply, or why there is none.
func addResult(s *otlp.Span, a *upstream.Attempt) {
	switch {
	case a.Err != nil:
		s.Err = a.Err.Error()
		s.Attrs = append(s.Attrs, otlp.Text("error.type", errorType(a.Err)))
	case a.Replied:
		s.Attrs = append(s.Attrs, otlp.Text("nodens.rcode", a.Rcode.String()))
		if a.Rcode == wire.ServFail || a.Rcode == wire.Refused {
			s.Err = a.Rcode.String()
			s.Attrs = append(s.Attrs, otlp.Text("error.type", s.Err))
		}
	}
}

// transportOf returns the transport below a protocol to upstreams.
func transportOf(protocol string) string {
	if protocol == "udp" {
		return protocol
	}
	return "tcp"
}

// errorTypes are the values of error.type for errors, in the order in which they are looked for.
var errorTypes = []struct {
	err  error
	name string
}{
	{errLoop, "loop"}, {upstream.ErrTimeout, "timeout"}, {context.DeadlineExceeded, "timeout"}, {upstream.ErrNoUpstream, "no_upstream"},
	{upstream.ErrTooMany, "too_many_queries"}, {upstream.ErrBusy, "too_many_queries"}, {upstream.ErrOverBudget, "too_many_queries"}, {context.Canceled, "cancelled"}, {upstream.ErrClosed, "cancelled"},
	{syscall.ECONNREFUSED, "connection_refused"}, {errIncomplete, "view_incomplete"},
}

// errorType returns the kind of an error, or OpenTelemetry's name for others.
func errorType(err error) string {
	for _, t := range errorTypes {
		if errors.Is(err, t.err) {
			return t.name
		}
	}
	return "_OTHER"
}

// maxRecordedWaits is how many waits a recording holds: one for each name that is asked for on behalf of a client.
const maxRecordedWaits = 32

// recording notes what a client's query and its subqueries wait for, from the first wait until the query is finished.
// Whether it is of use is known only then, so recordings are reused.
type recording struct {
	attempts upstream.Recorder
	waits    [maxRecordedWaits]recordedWait
	n, more  int    // waits, and those that there was no room for
	names    []byte // of all waits
}

// recordedWait is one wait. Its number among the waits is that of its exchange in attempts.
type recordedWait struct {
	forView      bool
	began, ended time.Duration // by package clock
	name         []byte        // part of names
	qtype        uint16
	hit          bool // the cache had an answer by then
	err          error
}

var recordings = sync.Pool{New: func() any { return new(recording) }}

// release returns rec to the pool.
func (rec *recording) release() {
	rec.attempts.Reset()
	clear(rec.waits[:rec.n])
	rec.n, rec.more, rec.names = 0, 0, rec.names[:0]
	recordings.Put(rec)
}

// recordWait notes the start of a wait of r, and returns the recording; nil if there is none, or no room.
func (r *Request) recordWait(forView bool) *recording {
	if r.routes == nil || !r.routes.tracing {
		return nil
	}
	rec := r.lookups.recording
	if rec == nil {
		rec = recordings.Get().(*recording)
		r.lookups.recording = rec
	}
	if rec.n == len(rec.waits) {
		rec.more++
		return nil
	}
	at := len(rec.names)
	rec.names = append(rec.names, r.Query.Name()...)
	rec.waits[rec.n] = recordedWait{forView: forView, began: clock.Now(), name: rec.names[at:], qtype: r.Query.Type}
	rec.n++
	return rec
}

// recordForward notes that r waits for an upstream, and returns where the exchange records its attempts.
func (r *Request) recordForward() upstream.Recording {
	rec := r.recordWait(false)
	if rec == nil {
		return upstream.Recording{}
	}
	return rec.attempts.Exchange(rec.n - 1)
}

// recordEnd notes the end of the wait that began last. hit says that the cache had an answer.
func (r *Request) recordEnd(hit bool, err error) {
	rec := r.lookups.recording
	if rec == nil || rec.more > 0 {
		return
	}
	w := &rec.waits[rec.n-1]
	w.ended, w.hit, w.err = clock.Now(), hit, err
}
