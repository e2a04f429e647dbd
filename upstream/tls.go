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

// maxTLSSessions is the TLS sessions kept for one server. A TLS 1.3 server gives one or
// two tickets per connection, each good for one more: half would leave none for the
// second of two connections made at once, double would be for those that are not.
const maxTLSSessions = 8

// newTLSConfig is what cfg says about TLS to servers whose certificates must be for
// serverName; "" leaves that to the transport. A nil cfg is no certificate of ours and
// the system's roots. Files are read now and not again: a reload makes a new Pool.
//
// TLS 1.3 is spoken where the server has it. Below 1.2 nothing is: CoreDNS draws the
// line there too, and resolvers in the field still end at 1.2.
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
			return nil, fmt.Errorf("tls: reading the authority's certificate: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tls: reading the authority's certificate %q: %w", cfg.CA, errNoPEM)
		}
	}
	return out, nil
}

var errNoPEM = errors.New("it holds no certificate in PEM")

// clientTLS is a copy of cfg for the connections to one server at addr: with sessions
// of its own to resume, and a name to verify.
func clientTLS(cfg *tls.Config, addr netip.Addr) *tls.Config {
	cfg = cfg.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = addr.WithZone("").String()
	}
	if cfg.ClientSessionCache == nil {
		cfg.ClientSessionCache = tls.NewLRUClientSessionCache(maxTLSSessions)
	}
	// Small records at the start make pages paint earlier. Queries are small anyway,
	// and a burst of them need not be cut up.
	cfg.DynamicRecordSizingDisabled = true
	return cfg
}

// handshake makes p, which it takes over, a TLS connection.
func handshake(ctx context.Context, c *asyncConn, cfg *tls.Config) (net.Conn, error) {
	c.bufferReads()
	conn := tls.Client(c, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("the TLS handshake as a client of %s: %w", cfg.ServerName, err)
	}
	return conn, nil
}
