// Package outage is the upstream of the benchmarks in which upstreams fail: a scripted DNS
// server that answers after a delay, over UDP and TCP or over TLS with a certificate for Host.
package outage

import (
	"crypto/tls"

	"github.com/nodens-dns/nodens/test/ca"
)

// Host is the name in the certificate, beside 127.0.0.1.
const Host = "upstream.test"

// Certificate makes a certificate for Host and 127.0.0.1, and returns its CA as PEM.
func Certificate() (*tls.Config, []byte, error) {
	issuer, err := ca.New()
	if err != nil {
		return nil, nil, err
	}
	c, err := issuer.Server(Host, "127.0.0.1")
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{c}}, issuer.PEM(), nil
}
