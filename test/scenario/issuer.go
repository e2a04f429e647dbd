package scenario

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/nodens-dns/nodens/test/authority"
)

// certificate says what is wrong with the one that a server shows.
type certificate struct {
	expired bool
	unknown bool   // nobody knows who signed it
	name    string // whom it is for; "" is serverName and the server's address
}

// serverName is whom good certificates are for.
const serverName = "dns.test"

// issuer signs the certificates of one scenario.
type issuer struct{ *authority.Authority }

func newIssuer() (*issuer, error) {
	a, err := authority.New()
	return &issuer{a}, err
}

// issue makes the certificate of the server at addr.
func (a *issuer) issue(c certificate, addr netip.Addr) (tls.Certificate, error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: serverName}}
	if c.expired {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	if c.name == "" {
		template.DNSNames, template.IPAddresses = []string{serverName}, []net.IP{addr.AsSlice()}
	} else {
		template.DNSNames = []string{c.name}
	}
	if c.unknown {
		var err error
		if a, err = newIssuer(); err != nil {
			return tls.Certificate{}, err
		}
	}
	return a.Issue(template)
}

// The files with which an agent proves who it is, and knows its servers.
const (
	caFile   = "scenario-ca.pem"
	certFile = "scenario-cert.pem"
	keyFile  = "scenario-key.pem"
)

// write puts the files into dir, with a certificate for addr.
func (a *issuer) write(dir string, addr netip.Addr) error {
	own, err := a.issue(certificate{}, addr)
	if err != nil {
		return err
	}
	cert, key, err := authority.PEM(own)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{caFile: a.PEM(), certFile: cert, keyFile: key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}
