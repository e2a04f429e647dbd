package config

import (
	"time"
)

// MaxLameduck is the longest time that an agent spends on `lameduck`, so that the whole stop, with teardown and the last queries,
// takes less than five seconds.
const MaxLameduck = 2 * time.Second

// Health is `health [ADDRESS] { lameduck DURATION }`.
type Health struct {
	Addr     string // host:port; ":8080" by default
	Lameduck time.Duration
}

func (h *Health) parse(p *parser, s statement) {
	h.Addr = ":8080"
	if p.count(s, 0, 1, "health [ADDRESS:PORT] (one address: with several local IPs, write the one that the kubelet asks)") && len(s.args()) == 1 {
		h.Addr, _ = p.listen(s.args()[0])
	}
	p.body(s, options{
		"lameduck": {usage: "lameduck DURATION", least: 1, most: 1, set: func(args []token) {
			h.Lameduck, _ = p.duration(args[0], 0, longest)
		}},
	})
}
