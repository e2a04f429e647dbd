package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
)

// maxSessions is the TLS sessions kept for one server. A TLS 1.3 server gives one or
// two tickets per connection, each good for one more: half would leave none for the
// second of two connections made at once, double would be for those that are not.
const maxSessions = 8

// clientTLS is a copy of cfg for the connections to one server at addr: with sessions
// of its own to resume, and a name to verify.
func clientTLS(cfg *tls.Config, addr netip.Addr) *tls.Config {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = addr.WithZone("").String()
	}
	if cfg.ClientSessionCache == nil {
		cfg.ClientSessionCache = tls.NewLRUClientSessionCache(maxSessions)
	}
	// Small records at the start make pages paint earlier. Queries are small anyway,
	// and a burst of them need not be cut up.
	cfg.DynamicRecordSizingDisabled = true
	return cfg
}

// shake makes p, which it takes over, a TLS connection.
func shake(ctx context.Context, p *pipe, cfg *tls.Config) (net.Conn, error) {
	p.buffered()
	conn := tls.Client(p, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		p.Close()
		return nil, fmt.Errorf("the TLS handshake as a client of %s: %w", cfg.ServerName, err)
	}
	return conn, nil
}
