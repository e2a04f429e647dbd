package scenario

import (
	"crypto/tls"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/nodens-dns/nodens/test/ca"
)

// certificate says what is wrong with a server's certificate.
type certificate struct {
	expired   bool
	unknownCA bool   // another CA signs it
	name      string // the name in it; "" is serverName and the server's address
}

// serverName is the name in good certificates.
const serverName = "dns.test"

// newCertificate makes the certificate of the server at addr. signer signs it, or another CA
// if c says so.
func newCertificate(signer *ca.CA, c certificate, addr netip.Addr) (tls.Certificate, error) {
	template := ca.ServerTemplate(serverName, addr.String())
	if c.name != "" {
		template = ca.ServerTemplate(c.name)
	}
	if c.expired {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	if c.unknownCA {
		var err error
		if signer, err = ca.New(); err != nil {
			return tls.Certificate{}, err
		}
	}
	return signer.Sign(template)
}

// The files with the agent's own certificate and the CA of its upstreams.
const (
	caFile   = "scenario-ca.pem"
	certFile = "scenario-cert.pem"
	keyFile  = "scenario-key.pem"
)

// writeCertificates writes the files to dir, with a certificate for addr.
func writeCertificates(signer *ca.CA, dir string, addr netip.Addr) error {
	cert, err := newCertificate(signer, certificate{}, addr)
	if err != nil {
		return err
	}
	if err := ca.WriteFiles(cert, filepath.Join(dir, certFile), filepath.Join(dir, keyFile)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, caFile), signer.PEM(), 0o600)
}
