package resolver

import (
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/upstream"
)

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

// recordView notes that r waits for the view of the cluster.
func (r *Request) recordView() { r.recordWait(true) }

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
