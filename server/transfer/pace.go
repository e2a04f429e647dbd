package transfer

import "time"

const (
	// minRate is the least number of bytes that a client takes per second, on average over paceWindow. A slower one would keep one of
	// the places from others.
	minRate    = 32 << 10
	paceWindow = 10 * time.Second
)

// Pace judges whether a client takes a transfer fast enough. It is not safe for concurrent use.
type Pace struct {
	since time.Duration // the beginning of the window, by package clock
	bytes int           // taken since then
}

// NewPace returns the Pace of a transfer that begins now.
func NewPace(now time.Duration) Pace { return Pace{since: now} }

// Sustains counts a message of n bytes that the client has taken by now. It returns false if the client is too slow.
func (p *Pace) Sustains(now time.Duration, n int) bool {
	p.bytes += n
	elapsed := now - p.since
	if elapsed < paceWindow {
		return true
	}
	enough := p.bytes >= int(minRate*elapsed.Seconds())
	*p = NewPace(now)
	return enough
}
