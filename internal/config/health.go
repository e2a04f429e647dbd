package config

import "time"

// MaxLameduck is the longest time that an agent spends on `lameduck`, so that the whole stop, with teardown and the last queries,
// takes less than five seconds. MaxPodLameduck is that of an agent that has set nothing up on the node: the pods that use it have
// to find another one meanwhile.
const (
	MaxLameduck    = 2 * time.Second
	MaxPodLameduck = 30 * time.Second
)

// Health is `health [ADDRESS] { lameduck DURATION }`.
type Health struct {
	Addr     string // host:port; ":8080" by default
	Lameduck time.Duration
}

func (h *Health) parse(p *parser, s statement) {
	h.Addr = p.listenArgument(s, "health [ADDRESS:PORT] (one address: with several local IPs, write the one that the kubelet asks)", ":8080")
	p.body(s, opt("lameduck DURATION", p.toDuration(&h.Lameduck, 0, longest)))
}
