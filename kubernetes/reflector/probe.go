package reflector

import (
	"context"
	"errors"
	"math/rand/v2"
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
	by        *Reflector    // tries often; nil: no request has failed
	lost      time.Time     // when the server could not be reached last
	recovered chan struct{} // closed when a request succeeds; nil: nobody waits for that
}

// pause waits before the request that follows a failure, the one after failed others. It ends soon after a request of
// another reflector has succeeded, unless the server has asked this one to wait. It reports whether it ended early for that reason.
func (f *Reflector) pause(ctx context.Context, failed int, err error) (recovered bool) {
	d := Backoff(f.FirstBackoff, failed, err)
	if isRejection(err) { // the server works
		f.Outages.noteReply(f)
		sleep(ctx, d)
		return false
	}
	probes, others := f.Outages.awaitReply(f, err)
	asked := retryAfter(err)
	if asked > 0 {
		others = nil
	}
	if probes {
		d = max(min(d, probePause+rand.N(probePause)), asked)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-others:
		sleep(ctx, min(d, rand.N(firstBackoff(f.FirstBackoff))))
		return true
	}
	return false
}

// awaitReply notes that a request of f failed with err. It reports whether f is the one that probes, and returns a channel
// that is closed when a request of another reflector succeeds.
func (l *OutageLog) awaitReply(f *Reflector, err error) (probes bool, recovered <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		l.probe.lost = time.Now()
	}
	if l.probe.by == nil {
		l.probe.by = f
	}
	if l.probe.recovered == nil {
		l.probe.recovered = make(chan struct{})
	}
	f.awaits = true
	return l.probe.by == f && time.Since(l.probe.lost) < startTime, l.probe.recovered
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
	if l.probe.recovered != nil {
		close(l.probe.recovered)
		l.probe.recovered = nil
	}
}
