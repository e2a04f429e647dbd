package server

import (
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// Door is how clients come in at an address. The zero value is plain DNS with the
// server's own limits. A reload may change all of it; connections that are open keep
// what they came in with, but for the times.
type Door struct {
	Transport config.Transport
	// Certificate is what clients are shown. It is not nil for transports over TLS,
	// and not looked at for plain DNS.
	Certificate *Certificate
	// Timeouts stand in place of those of [Limits] where they are not zero.
	Timeouts config.Timeouts
}

// times are how long clients may take, and how much a connection may carry.
type times struct {
	idle, sending, taking time.Duration // as in Limits
	queries               int           // 0: any number
}

// times are l's with what t sets in their place.
func (l *Limits) times(t config.Timeouts) times {
	return times{
		idle:    orDefault(t.Idle, l.Idle),
		sending: orDefault(t.Read, l.Sending),
		taking:  orDefault(t.Write, l.Taking),
		queries: max(0, t.MaxTCPQueries),
	}
}

// fits reports whether l can go on under d, with its sockets and connections. What an
// HTTP server is told it is told at its start.
func (l *listener) fits(d Door) bool {
	old := l.routes.Load().Door
	return old.Transport == d.Transport && (d.Transport != config.DNSOverHTTPS || old.Timeouts == d.Timeouts)
}

// times are those that hold now for l's connections.
func (s *Server) times(l *listener) times {
	if rt := l.routes.Load(); rt != nil {
		return s.limits.times(rt.Door.Timeouts)
	}
	return s.limits.times(config.Timeouts{})
}
