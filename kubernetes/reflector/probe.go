package reflector

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// probePause is the longest pause of one of the reflectors of an API server that can't be reached, lengthened at random by up
	// to its own length: 5,000 nodes try some 1,100 times a second.
	probePause = 3 * time.Second
	// startTime is how long a server that can be reached again may reply with errors until it has started.
	startTime = time.Minute
)

// probe makes one of the reflectors of an API server that can't be reached try again often, and lets the others know when the
// server replies. The mutex of its [OutageLog] guards it.
type probe struct {
	by   *Reflector // tries often; nil: no request has failed
	lost time.Time  // when the server could not be reached last
	// recovered is closed when a request succeeds, ready when the server says that it is ready, for those that it has
	// asked to wait. nil: nobody waits for that.
	recovered, ready chan struct{}
	asks             bool // one of those that the server has asked to wait asks whether it is ready
}

// awaitReply notes that a request of f failed with err. It reports whether f is the one that probes, and returns a channel
// that is closed when f's pause may end early.
func (l *OutageLog) awaitReply(f *Reflector, err error) (probes bool, end <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		l.probe.lost = time.Now()
	}
	if l.probe.by == nil {
		l.probe.by = f
	}
	f.awaits = true
	probes = l.probe.by == f && l.probe.starting()
	if retryAfter(err) > 0 {
		return probes, awaited(&l.probe.ready)
	}
	return probes, awaited(&l.probe.recovered)
}

// starting reports whether the server may still be about to start.
func (p *probe) starting() bool { return time.Since(p.lost) < startTime }

// rejects reports whether err is the server's last word on the request: it works, but does not serve it. A server that
// starts forbids everything until it has read the roles.
func (l *OutageLog) rejects(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return isRejection(err) && !(apierrors.IsForbidden(err) && l.probe.starting())
}

// awaited returns *c, a new channel if it is nil.
func awaited(c *chan struct{}) <-chan struct{} {
	if *c == nil {
		*c = make(chan struct{})
	}
	return *c
}

// wake closes *c if anything waits for it.
func wake(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// noteReply notes that a request of f has succeeded, or that f ends: if others still fail, one of them probes then.
func (l *OutageLog) noteReply(f *Reflector) {
	if !f.awaits {
		return
	}
	f.awaits = false
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probe.by = nil
	wake(&l.probe.recovered)
}

// asksWhetherReady reports whether the caller, which the server has asked to wait, is the one that asks whether it is ready. It calls
// noteReady then.
func (l *OutageLog) asksWhetherReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	asks := !l.probe.asks && l.probe.starting()
	l.probe.asks = l.probe.asks || asks
	return asks
}

// noteReady notes whether the server has started: what it asks for after that has another reason.
func (l *OutageLog) noteReady(ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probe.asks = false
	if ready {
		l.probe.lost = time.Time{}
		wake(&l.probe.ready)
	}
}
