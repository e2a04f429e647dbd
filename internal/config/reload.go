package config

import (
	"math"
	"time"
)

// Reload is `reload [INTERVAL] [JITTER]`: how often the Corefile is checked for changes.
// Interval 0 means "off". Jitter is at most half the interval.
type Reload struct {
	Interval, Jitter time.Duration
}

const (
	defaultInterval = 30 * time.Second
	defaultJitter   = 15 * time.Second
	// minInterval and minJitter are CoreDNS's limits.
	minInterval = 2 * time.Second
	minJitter   = time.Second
)

// longest is the upper limit of durations without one of their own.
const longest = time.Duration(math.MaxInt64)

func (r *Reload) parse(p *parser, s statement) {
	*r = Reload{Interval: defaultInterval, Jitter: defaultJitter}
	p.body(s)
	if !p.count(s, "reload [INTERVAL|off] [JITTER]") {
		return
	}
	args := s.args()
	if len(args) > 0 {
		if args[0].text == "off" || isZero(args[0]) {
			*r = Reload{}
			return
		}
		r.Interval, _ = p.duration(args[0], minInterval, longest)
	}
	if len(args) > 1 {
		least := minJitter
		if isZero(args[1]) {
			least = 0
		}
		r.Jitter, _ = p.duration(args[1], least, longest)
	}
	r.Jitter = min(r.Jitter, r.Interval/2)
}

// isZero reports whether w is a zero duration, which disables a function.
func isZero(w token) bool {
	d, err := time.ParseDuration(w.text)
	return err == nil && d == 0
}
