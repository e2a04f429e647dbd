package endpoint

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/clock"
)

const (
	// expositionAge is the age up to which scrapes share the last text if making texts takes too long.
	expositionAge = time.Second
	// expositionShare is the part of one CPU that texts younger than that may take. A text takes a millisecond or two on
	// a small node, and 50 ms with thousands of series.
	expositionShare = 20 // one in
	// maxExpositionTime bounds the time that texts take at once, after a pause, so that a few scrapers, or a
	// person who looks twice, always see the present.
	maxExpositionTime = 400 * time.Millisecond
)

// Exposition answers scrapes with the text of all metrics, which it makes once in expositionAge, or as often as
// expositionShare allows. Each scrape gets the last one. Each client gets the text format without parameters, compressed with gzip if it
// accepts that: whatever else it asks for would be another text to make. The entity tag (RFC 9110, section 8.8.3) tells texts
// apart: one that a client has not seen was made for its request, if nobody else scrapes. It is safe for concurrent use.
type Exposition struct {
	source http.Handler // writes the text
	// tag tells the entity tags from those of other agents that have used the address.
	tag int64
	// spent is the time that texts may take their share of: the CPU time of the process.
	spent func() time.Duration

	mu   sync.Mutex
	made time.Duration // when the metrics were read last, by package clock
	// paid is when the texts made so far have their share, by package clock.
	paid time.Duration
	// last are the last texts, plain and compressed; nil: not made since the metrics were read.
	last  [2]*recordedReply
	texts uint64 // made so far
}

// NewExposition returns an Exposition of what source writes.
func NewExposition(source http.Handler) *Exposition {
	return &Exposition{source: source, tag: time.Now().UnixNano(), spent: processTime}
}

// ServeHTTP implements http.Handler. Nothing is held while the client reads.
func (x *Exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := x.reply(strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"), clock.Now())
	for key, values := range reply.header {
		w.Header()[key] = values
	}
	w.WriteHeader(reply.status)
	_, _ = w.Write(reply.body.Bytes())
}

// reply returns the text of the metrics by now, or a little earlier.
func (x *Exposition) reply(gzip bool, now time.Duration) *recordedReply {
	x.mu.Lock()
	defer x.mu.Unlock()
	form := 0
	if gzip {
		form = 1
	}
	const credit = maxExpositionTime * expositionShare
	if x.paid-now <= credit || now-x.made >= expositionAge {
		x.last, x.made = [2]*recordedReply{}, now
	}
	if x.last[form] == nil {
		began := x.spent()
		x.last[form] = x.record(gzip)
		x.texts++
		x.last[form].header.Set("ETag", fmt.Sprintf(`"%x-%x"`, x.tag, x.texts))
		x.paid = min(max(x.paid, now)+(x.spent()-began)*expositionShare, now+2*credit)
	}
	return x.last[form]
}

// processTime returns the CPU time that the process has taken. A text on a busy machine costs no more than on another.
func processTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) // fails for unknown clocks only
	return time.Duration(t.Nano())
}

// record has the source write the text.
func (x *Exposition) record(gzip bool) *recordedReply {
	r := &http.Request{Method: http.MethodGet, Header: make(http.Header)}
	if gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	reply := &recordedReply{header: make(http.Header), status: http.StatusOK}
	x.source.ServeHTTP(reply, r)
	return reply
}

// recordedReply is a reply in memory. Once it is written nothing changes it.
type recordedReply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recordedReply) Header() http.Header         { return r.header }
func (r *recordedReply) WriteHeader(status int)      { r.status = status }
func (r *recordedReply) Write(b []byte) (int, error) { return r.body.Write(b) }
