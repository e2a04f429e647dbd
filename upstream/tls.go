package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
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
		pair, err := loadKeyPair(cfg.Cert, cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: reading the certificate %q and its key %q: %w", cfg.Cert, cfg.Key, err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if cfg.CA != "" {
		text, err := filewatch.Read(cfg.CA, maxPEMFile)
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

// maxPEMFile bounds a file with certificates or a key, in bytes. A bundle of all public roots has 220 KiB.
const maxPEMFile = 1 << 20

// loadKeyPair is [tls.LoadX509KeyPair] for files of at most maxPEMFile bytes.
func loadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := filewatch.Read(certFile, maxPEMFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := filewatch.Read(keyFile, maxPEMFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
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
	// Growing records serve browsers; queries are small.
	cfg.DynamicRecordSizingDisabled = true
	return cfg
}

// handshake returns a TLS connection over c. It takes ownership of c.
func handshake(ctx context.Context, c *asyncConn, cfg *tls.Config) (net.Conn, error) {
	c.reader = bufio.NewReaderSize(ackingReader{c}, readBufSize) // TLS reads in small pieces
	c.ackNow = true                                              // OpenSSL sends the session tickets in several pieces, and then the reply
	conn := tls.Client(c, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", cfg.ServerName, err)
	}
	return &tlsConn{conn, c}, nil
}

// tlsConn writes the last of the framed queries that it gets in a record of its own. After a query, dnsdist 1.7 waits until the socket is
// readable, although it has decrypted further ones of the record; the record behind makes it so. Behind the last query there is nothing.
type tlsConn struct {
	*tls.Conn
	under *asyncConn
}

// Write implements [net.Conn] for framed queries, without blocking. It is not safe for
// concurrent use.
func (c *tlsConn) Write(b []byte) (int, error) {
	last := 0
	for next := frameLen(b); next < len(b); next += frameLen(b[next:]) {
		last = next
	}
	if last == 0 {
		return c.Conn.Write(b)
	}
	c.under.cork()
	_, failed := c.Conn.Write(b[:last])
	if failed == nil {
		_, failed = c.Conn.Write(b[last:])
	}
	if err := c.under.uncork(); err != nil && failed == nil {
		failed = err
	}
	if failed != nil {
		return 0, failed
	}
	return len(b), nil
}
