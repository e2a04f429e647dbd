package peer

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/authority"
)

// Authority issues certificates. Its methods end the test where they fail.
type Authority struct {
	// Pool holds the authority's own certificate.
	Pool *x509.CertPool
	of   *authority.Authority
}

// NewAuthority makes an authority that nobody else knows.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Pool: a.Pool(), of: a}
}

// issue makes a certificate for loopback.
func (a *Authority) issue(t testing.TB, name string, until time.Time) tls.Certificate {
	t.Helper()
	c, err := a.of.Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Issue writes a certificate for loopback and its key to cert.pem and key.pem in
// folder, each by way of a new file that takes the place of the old one.
func (a *Authority) Issue(t testing.TB, folder, name string, until time.Time) (cert, key string) {
	t.Helper()
	certPEM, keyPEM, err := authority.PEM(a.issue(t, name, until))
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	Replace(t, key, keyPEM)
	Replace(t, cert, certPEM)
	return cert, key
}

// Client makes a certificate for a client.
func (a *Authority) Client(t testing.TB) tls.Certificate {
	t.Helper()
	return a.issue(t, "a client", time.Now().Add(time.Hour))
}

// Root writes the authority's own certificate to ca.pem in folder and gives its path.
func (a *Authority) Root(t testing.TB, folder string) string {
	t.Helper()
	path := filepath.Join(folder, "ca.pem")
	Replace(t, path, a.of.PEM())
	return path
}

// Replace writes text to a new file and puts it in the place of the one at path.
func Replace(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
