package config

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Tunnel is `tunnel { names N; bytes N; window DURATION; limit QPS; except ZONES… }`: finds pods that may send data in the names of their
// queries.
type Tunnel struct {
	// Names and Bytes are how many different names below a registered domain, and how many bytes in them, a client may ask upstreams for
	// within Window until it is suspected.
	Names, Bytes int
	Window       time.Duration
	// Limit is how many queries a second a suspected client may ask below that domain; 0: as many as before.
	Limit int
	// Except are the zones whose names are not counted.
	Except []wire.Name
}

const (
	defaultTunnelNames, minTunnelNames, maxTunnelNames    = 500, 50, 5000
	defaultTunnelBytes, minTunnelBytes, maxTunnelBytes    = 16 << 10, 1 << 10, 1 << 30
	defaultTunnelWindow, minTunnelWindow, maxTunnelWindow = 10 * time.Minute, time.Minute, time.Hour
	maxTunnelLimit                                        = 10_000
)

func (t *Tunnel) parse(p *parser, s statement) {
	*t = Tunnel{Names: defaultTunnelNames, Bytes: defaultTunnelBytes, Window: defaultTunnelWindow}
	if !p.count(s, "tunnel { names N; bytes N; window DURATION; limit QPS; except ZONES… }") {
		return
	}
	p.body(s,
		opt("names N", toNumber(p, &t.Names, minTunnelNames, maxTunnelNames)),
		opt("bytes N", toNumber(p, &t.Bytes, minTunnelBytes, maxTunnelBytes)),
		opt("window DURATION", p.toDuration(&t.Window, minTunnelWindow, maxTunnelWindow)),
		opt("limit QPS", toNumber(p, &t.Limit, 1, maxTunnelLimit)),
		opt("except ZONES…", p.toZones(&t.Except)),
	)
}
