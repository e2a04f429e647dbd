package config

import (
	"strconv"
	"time"
)

// Timeouts is `timeouts { read D; write D; idle D; maxtcpqueries N }` for clients over TCP, TLS
// and HTTPS. A zero field means the server's default.
type Timeouts struct {
	Read, Write, Idle time.Duration
	// MaxTCPQueries is the maximum number of queries on a TCP or TLS connection, -1
	// for no limit.
	MaxTCPQueries int
}

const (
	// leastTimeout and mostTimeout are CoreDNS's limits.
	leastTimeout = time.Second
	mostTimeout  = 24 * time.Hour
)

func (x *Timeouts) parse(p *parser, s statement) {
	if !p.count(s, "timeouts { read|write|idle DURATION }") {
		return
	}
	if len(s.body) == 0 {
		p.errorf(s.name(), "no timeout is set; add a line such as `read 5s`, or take the directive out")
		return
	}
	p.body(s,
		x.option(p, "read DURATION", &x.Read),
		x.option(p, "write DURATION", &x.Write),
		x.option(p, "idle DURATION", &x.Idle),
		opt("maxtcpqueries NUMBER", func(args []token) {
			n, ok := p.number(args[0], -1, 1<<31-1)
			if x.MaxTCPQueries = int(n); ok && n == 0 {
				p.errorf(args[0], "0 queries make no connection; allowed: -1 for any number, or 1 and more")
			}
		}),
	)
}

// option returns the option that sets dst. A number without a unit means seconds.
func (x *Timeouts) option(p *parser, usage string, dst *time.Duration) option {
	return opt(usage, func(args []token) {
		w := args[0]
		if _, err := strconv.Atoi(w.text); err == nil {
			w.text += "s"
		}
		*dst, _ = p.duration(w, leastTimeout, mostTimeout)
	})
}

// WithDefaults returns x with zero fields replaced by next's. Both may be nil.
func (x *Timeouts) WithDefaults(next *Timeouts) Timeouts {
	var sum Timeouts
	for _, t := range []*Timeouts{x, next} {
		if t == nil {
			continue
		}
		if t.Read != 0 {
			sum.Read = t.Read
		}
		if t.Write != 0 {
			sum.Write = t.Write
		}
		if t.Idle != 0 {
			sum.Idle = t.Idle
		}
		if t.MaxTCPQueries != 0 {
			sum.MaxTCPQueries = t.MaxTCPQueries
		}
	}
	return sum
}
