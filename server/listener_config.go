package server

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/resolver"
)

// ListenAddr is where a listener receives queries. Two listeners may have the same address and
// port if QUIC is set for one of them, which has the UDP port, and the other one serves a
// transport over TCP alone. Plain DNS has both ports.
type ListenAddr struct {
	netip.AddrPort
	// QUIC is set for the transports over QUIC, and only for them.
	QUIC bool
}

// ListenerConfig says what one address serves and how clients connect to it. Only
// Routes is required: the rest defaults to plain DNS with the timeouts of [Limits].
// [Server.Listen] can replace all of it. Open connections keep their transport and
// certificate; new routes and timeouts apply to them from the next query on.
type ListenerConfig struct {
	// Routes answers the queries. It is not nil.
	Routes    *resolver.Routes
	Transport config.Transport
	// Certificate is the server certificate. It is ignored for plain DNS and required for
	// every other transport.
	Certificate *Certificate
	// Timeouts override the timeouts of [Limits] where they are not zero.
	Timeouts config.Timeouts
	// QUIC overrides limits of the transports over QUIC where it is not zero.
	QUIC config.QUICLimits
}

// timeouts are the limits of one connection in time and queries.
type timeouts struct {
	idle, read, write time.Duration // as in Limits
	maxQueries        int           // 0 means no limit
}

// timeouts returns l's timeouts, overridden by the ones that t sets.
func (l *Limits) timeouts(t config.Timeouts) timeouts {
	return timeouts{
		idle:       orDefault(t.Idle, l.IdleTimeout),
		read:       orDefault(t.Read, l.ReadTimeout),
		write:      orDefault(t.Write, l.WriteTimeout),
		maxQueries: max(0, t.MaxTCPQueries),
	}
}
