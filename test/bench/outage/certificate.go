package outage

import (
	"crypto/tls"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/ca"
)

// upstreamCertificate makes a certificate for upstreamHost and 127.0.0.1, and returns its CA as PEM.
func upstreamCertificate() (*tls.Config, []byte, error) {
	issuer, err := ca.New()
	if err != nil {
		return nil, nil, err
	}
	c, err := issuer.Server(harness.UpstreamHost, "127.0.0.1")
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{c}}, issuer.PEM(), nil
}
