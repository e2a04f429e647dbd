package kubernetes

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// outageInterval is the time between two summaries of an outage.
const outageInterval = time.Minute

// outageTexts are the messages of one kind of outage.
type outageTexts struct{ start, ongoing, end string }

var (
	serverOutage = outageTexts{
		start:   "API server unavailable, serving last known data",
		ongoing: "API server still unavailable",
		end:     "API server available again",
	}
	rejectedRequest = outageTexts{
		start:   "API server rejects request, serving last known data",
		ongoing: "API server still rejects request",
		end:     "API server no longer rejects request",
	}
	manifestOutage = outageTexts{
		start:   "manifests unreadable, serving last known data",
		ongoing: "manifests still unreadable",
		end:     "manifests readable again",
	}
)

// outageLog logs the outages of one view. All reflectors of the view share it, so that an
// API server that goes away costs one line at the start, one summary per
// [outageInterval] and one line at the end, however many requests fail. Safe for
// concurrent use.
type outageLog struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	active map[string]*outage // by cause
}

// outage is one outage. It lasts while at least one participant fails.
type outage struct {
	cause    string
	texts    outageTexts
	start    time.Time
	failures int
	lastErr  error
	failing  map[*outageParticipant]struct{}
	timer    *time.Timer // of the next summary
}

// outageParticipant is something that can fail, such as a reflector.
type outageParticipant struct {
	resource string  // set before use and then left alone
	outage   *outage // the outageLog's own; nil: it works
}

func newOutageLog(log *slog.Logger, now func() time.Time) *outageLog {
	return &outageLog{log: log, now: now, active: make(map[string]*outage)}
}

// fail reports that p failed with err, for that cause. args are fields of the line that
// is logged if this starts an outage.
func (l *outageLog) fail(p *outageParticipant, cause string, texts outageTexts, err error, args ...any) {
	err = withoutURL(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.outage != nil && p.outage.cause != cause {
		l.leave(p, true) // it fails for another reason now
	}
	o := l.active[cause]
	if o == nil {
		o = &outage{cause: cause, texts: texts, start: l.now(), failing: make(map[*outageParticipant]struct{})}
		o.timer = time.AfterFunc(outageInterval, func() { l.summarize(o) })
		l.active[cause] = o
		l.log.Error(texts.start, append(args, "err", err)...)
	}
	o.failures++
	o.lastErr = err
	o.failing[p] = struct{}{}
	p.outage = o
}

// recovered reports that p works.
func (l *outageLog) recovered(p *outageParticipant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(p, true)
}

// remove forgets p, which has stopped. If p was the last that failed, the outage ends
// without a line: nothing is known about its cause any more.
func (l *outageLog) remove(p *outageParticipant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(p, false)
}

// leave takes p out of its outage and ends the outage if nothing fails any more. The lock
// is held.
func (l *outageLog) leave(p *outageParticipant, works bool) {
	o := p.outage
	if o == nil {
		return
	}
	p.outage = nil
	delete(o.failing, p)
	if len(o.failing) > 0 {
		return
	}
	o.timer.Stop()
	delete(l.active, o.cause)
	if works {
		l.log.Info(o.texts.end, "resource", p.resource, "failures", o.failures, "duration", l.lasted(o))
	}
}

// summarize logs the state of o, and again after each [outageInterval].
func (l *outageLog) summarize(o *outage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active[o.cause] != o {
		return
	}
	l.log.Error(o.texts.ongoing, "resources", o.resources(), "failures", o.failures, "duration", l.lasted(o), "err", o.lastErr)
	o.timer.Reset(outageInterval)
}

// lasted returns the duration of o so far, in whole seconds.
func (l *outageLog) lasted(o *outage) time.Duration { return l.now().Sub(o.start).Round(time.Second) }

// resources lists what fails, sorted and separated by commas.
func (o *outage) resources() string {
	var list []string
	for p := range o.failing {
		list = append(list, p.resource)
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// withoutURL returns err without the URL that net/http puts in front of it: the URL of a
// watch is long and has a random timeout.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// isRejection reports whether err is the API server's answer to one request, and says
// nothing about the others. Refused credentials and a server that asks for patience
// concern all requests.
func isRejection(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}
