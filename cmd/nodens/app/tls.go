package app

import (
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server"
)

// loadCertificates loads the certificates of g's blocks, or reuses old's certificates (nil: none).
func loadCertificates(a *builder, g, old *generation) (err error) {
	for _, b := range g.cfg.Blocks {
		if b.Transport != config.PlainDNS && b.TLS != nil {
			err = loadCertificate(a, g, old, *b.TLS)
		}
		for d := range b.Dnstap.All {
			if d.Listen && d.Network == "tls" && err == nil {
				err = loadCertificate(a, g, old, d.TLS)
			}
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", b.Line, err)
		}
	}
	return nil
}

// loadCertificate loads one certificate, or reuses old's.
func loadCertificate(a *builder, g, old *generation, key config.TLSServer) (err error) {
	c := g.certs[key]
	if c == nil && old != nil {
		c = old.certs[key]
	}
	if c == nil {
		if c, err = server.NewCertificate(key, a.log.With("part", "server")); err != nil {
			return err
		}
	}
	g.certs[key] = c
	return nil
}

// listenAddr returns where b receives queries at addr.
func listenAddr(b *config.Block, addr netip.AddrPort) server.ListenAddr {
	return server.ListenAddr{AddrPort: addr, QUIC: b.Transport.OverQUIC()}
}

// listenerConfig returns before with the settings of b. All blocks on an address share one
// listener.
func listenerConfig(g *generation, before server.ListenerConfig, b *config.Block) server.ListenerConfig {
	d := server.ListenerConfig{Transport: b.Transport, Timeouts: before.Timeouts.WithDefaults(b.Timeouts), QUIC: before.QUIC}
	if d.QUIC == (config.QUICLimits{}) {
		d.QUIC = b.QUICLimits()
	}
	if b.Transport != config.PlainDNS && b.TLS != nil {
		d.Certificate = g.certs[*b.TLS]
	}
	return d
}
