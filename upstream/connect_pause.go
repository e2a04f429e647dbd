package upstream

import (
	"errors"
	"time"
)

const (
	// firstConnectPause is how long a transport does not connect after a failed attempt.
	firstConnectPause = 100 * time.Millisecond
	// connectPauseDoublings is how often the pause doubles while attempts fail. The longest
	// pause of 400 ms adds that much to a restart, and means 2.5 attempts per second to a
	// server that stays away.
	connectPauseDoublings = 2
)

// connectPause keeps a transport from connecting in a loop to a server that refuses
// connections or closes them at once, as one that shuts down does. Without it, each query
// that waits would cause an attempt. The zero value is no pause; the transport's lock
// guards it.
type connectPause struct {
	failures int       // in a row
	until    time.Time // no attempts before
	reason   error     // of the last failure
}

// errEndedUnanswered is the reason of a pause after a connection that was opened in vain.
var errEndedUnanswered = errors.New("the server ends connections before the first reply")

// start begins a pause because an attempt has failed with err.
func (p *connectPause) start(err error, now time.Time) {
	p.until = now.Add(firstConnectPause << min(p.failures, connectPauseDoublings))
	p.failures++
	p.reason = err
}

// startUnlessFirst is start for a connection that the server has closed without a reply. The first one may have met the end of a restart,
// so another one may follow at once.
func (p *connectPause) startUnlessFirst(err error, now time.Time) {
	if p.failures > 0 {
		p.start(err, now)
		return
	}
	p.failures++
}

// end ends the pause because the server has replied.
func (p *connectPause) end() { *p = connectPause{} }

// err returns the error for queries that need a new connection; nil if the transport may
// connect.
func (p *connectPause) err(now time.Time) error {
	if now.Before(p.until) {
		return p.reason
	}
	return nil
}
