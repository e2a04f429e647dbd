package reflector

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

	"github.com/nodens-dns/nodens/internal/outage"
)

var (
	serverOutage = outage.Messages{
		Start:   "API server unavailable, serving last known data",
		Ongoing: "API server still unavailable",
		End:     "API server available again",
	}
	rejectedRequest = outage.Messages{
		Start:   "API server rejects request, serving last known data",
		Ongoing: "API server still rejects request",
		End:     "API server no longer rejects request",
	}
	// firstOutage and firstRejected are those before the first list.
	firstOutage = outage.Messages{
		Start:   "API server unavailable, nothing listed yet",
		Ongoing: "API server still unavailable",
		End:     "API server available again",
	}
	firstRejected = outage.Messages{
		Start:   "API server rejects request, nothing listed yet",
		Ongoing: "API server still rejects request",
		End:     "API server no longer rejects request",
	}
)

// OutageLog logs outages, and ends the pauses of those that wait for the server's return. All reflectors of one API server share it, so that a server that
// goes away costs one line at the start, one summary a minute and one line at the end,
// however many requests fail. Safe for concurrent use.
type OutageLog struct {
	log *slog.Logger

	mu      sync.Mutex
	active  map[string]*sharedOutage // by cause
	skipped uint64                   // objects that could not be read
	probe   probe
}

// sharedOutage is one outage. It lasts while at least one participant fails.
type sharedOutage struct {
	cause   string
	log     *outage.Log
	failing map[*OutageParticipant]struct{}
	last    Failure
}

// Failure is an error of an outage, and what to do about it.
type Failure struct {
	Err error  // nil: there is no outage
	Fix string // "" if nothing is known
	at  time.Time
}

// OutageParticipant is something that can fail, such as a reflector. It belongs to one
// OutageLog and must not be copied after its first failure.
type OutageParticipant struct {
	Resource string        // named in the summaries; not changed after the first failure
	outage   *sharedOutage // the OutageLog's own; nil: it works
}

// NewOutageLog returns an OutageLog that writes to log.
func NewOutageLog(log *slog.Logger) *OutageLog {
	return &OutageLog{log: log, active: make(map[string]*sharedOutage)}
}

// Fail reports that p failed with err. Failures of the same cause are one outage; if p
// failed for another cause before, it has recovered from that. messages are the outage's
// and args fields of its first line, both used only if this failure starts it. The
// URL of an HTTP request is left out of err.
func (l *OutageLog) Fail(p *OutageParticipant, cause string, messages outage.Messages, err error, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.outage != nil && p.outage.cause != cause {
		l.leave(p, true) // it fails for another reason now
	}
	o := l.active[cause]
	if o == nil {
		o = &sharedOutage{cause: cause, failing: make(map[*OutageParticipant]struct{})}
		o.log = &outage.Log{Messages: messages, Logger: l.log, Level: slog.LevelError, Fields: func() []any { return []any{"resources", l.resources(o)} }}
		l.active[cause] = o
	}
	o.last = Failure{Err: WithoutURL(err), at: time.Now()}
	if at := slices.Index(args, any("fix")); at >= 0 {
		o.last.Fix, _ = args[at+1].(string)
	}
	o.log.Fail(o.last.Err, args...)
	o.failing[p] = struct{}{}
	p.outage = o
}

// Recovered reports that p works, which ends the outage if nothing else fails for the same
// cause.
func (l *OutageLog) Recovered(p *OutageParticipant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(p, true)
}

// Remove forgets p, which has stopped. If p was the last that failed, the outage ends
// without a line: nothing is known about its cause any more.
func (l *OutageLog) Remove(p *OutageParticipant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(p, false)
}

// leave takes p out of its outage and ends the outage if nothing fails any more. The lock
// is held.
func (l *OutageLog) leave(p *OutageParticipant, works bool) {
	o := p.outage
	if o == nil {
		return
	}
	p.outage = nil
	delete(o.failing, p)
	if len(o.failing) > 0 {
		return
	}
	delete(l.active, o.cause)
	if works {
		o.log.Recover("resource", p.Resource)
	} else {
		o.log.Stop()
	}
}

// resources lists what fails in o, sorted and separated by commas.
func (l *OutageLog) resources(o *sharedOutage) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for p := range o.failing {
		list = append(list, p.Resource)
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

// Failing returns the resources whose requests fail now, sorted.
func (l *OutageLog) Failing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for _, o := range l.active {
		for p := range o.failing {
			list = append(list, p.Resource)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Rejects reports whether the API server rejects requests for the resource.
func (l *OutageLog) Rejects(resource string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active[resource] != nil
}

// LastFailure returns the last failure of the outages that last, the zero Failure if none does.
func (l *OutageLog) LastFailure() (last Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.active {
		if !o.last.at.Before(last.at) {
			last = o.last
		}
	}
	return last
}

// Skipped returns how often an object could not be read.
func (l *OutageLog) Skipped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.skipped
}

// noteSkipped counts an object that could not be read.
func (l *OutageLog) noteSkipped() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.skipped++
}

// WithoutURL returns err without the URL that net/http puts in front of it: the URL of a
// watch is long and has a random timeout.
func WithoutURL(err error) error {
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
