package outage

import (
	"crypto/tls"
	"crypto/x509"
	"net"

	"github.com/nodens-dns/nodens/test/authority"
)

// Host is the name that a certificate is for, besides 127.0.0.1.
const Host = "upstream.test"

// Certificate makes a certificate for Host and 127.0.0.1, and gives that of who has
// signed it as PEM.
func Certificate() (*tls.Config, []byte, error) {
	a, err := authority.New()
	if err != nil {
		return nil, nil, err
	}
	c, err := a.Issue(&x509.Certificate{DNSNames: []string{Host}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{c}}, a.PEM(), nil
}
