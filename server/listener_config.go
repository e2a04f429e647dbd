package server

import (
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// ListenerConfig is how clients come in at an address. The zero value is plain DNS with the
// server's own limits. A reload may change all of it; connections that are open keep
// what they came in with, but for the times.
type ListenerConfig struct {
	Transport config.Transport
	// Certificate is what clients are shown. It is not nil for transports over TLS,
	// and not looked at for plain DNS.
	Certificate *Certificate
	// Timeouts stand in place of those of [Limits] where they are not zero.
	Timeouts config.Timeouts
}

// timeouts are how long clients may take, and how much a connection may carry.
type timeouts struct {
	idle, read, write time.Duration // as in Limits
	maxQueries        int           // 0: any number
}

// timeouts are l's with what t sets in their place.
func (l *Limits) timeouts(t config.Timeouts) timeouts {
	return timeouts{
		idle:       orDefault(t.Idle, l.IdleTimeout),
		read:       orDefault(t.Read, l.ReadTimeout),
		write:      orDefault(t.Write, l.WriteTimeout),
		maxQueries: max(0, t.MaxTCPQueries),
	}
}

// accepts reports whether l can go on under d, with its sockets and connections. What an
// HTTP server is told it is told at its start.
func (l *listener) accepts(d ListenerConfig) bool {
	old := l.routes.Load().Config
	return old.Transport == d.Transport && (d.Transport != config.DNSOverHTTPS || old.Timeouts == d.Timeouts)
}

// timeouts are those that hold now for l's connections.
func (s *Server) timeouts(l *listener) timeouts {
	if rt := l.routes.Load(); rt != nil {
		return s.limits.timeouts(rt.Config.Timeouts)
	}
	return s.limits.timeouts(config.Timeouts{})
}
