package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/nodens-dns/nodens/internal/config"
)

// maxTLSSessions bounds the TLS sessions kept per server. A TLS 1.3 server issues one or
// two single-use tickets per connection.
const maxTLSSessions = 8

// newTLSConfig returns the TLS configuration for servers whose certificates must be valid
// for serverName; if it is empty, the transport sets a name. A nil cfg means no client
// certificate and the system's roots. Files are read once: a reload creates a new Pool. The
// minimum is TLS 1.2, as in CoreDNS.
func newTLSConfig(cfg *config.TLSClient, serverName string) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if cfg == nil {
		return out, nil
	}
	if cfg.Cert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: reading the certificate %q and its key %q: %w", cfg.Cert, cfg.Key, err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if cfg.CA != "" {
		text, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("tls: reading the CA certificate: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tls: reading the CA certificate %q: %w", cfg.CA, errNoPEM)
		}
	}
	return out, nil
}

var errNoPEM = errors.New("it has no PEM certificate")

// clientTLS returns a copy of cfg for the connections to one server at addr, with its own
// session cache and a name to verify.
func clientTLS(cfg *tls.Config, addr netip.Addr) *tls.Config {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = addr.WithZone("").String()
	}
	if cfg.ClientSessionCache == nil {
		cfg.ClientSessionCache = tls.NewLRUClientSessionCache(maxTLSSessions)
	}
	// Growing records serve browsers; queries are small, and a burst of them fits into one
	// record.
	cfg.DynamicRecordSizingDisabled = true
	return cfg
}

// handshake returns a TLS connection over c. It takes ownership of c.
func handshake(ctx context.Context, c *asyncConn, cfg *tls.Config) (net.Conn, error) {
	c.bufferReads()
	conn := tls.Client(c, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", cfg.ServerName, err)
	}
	return conn, nil
}
