package ca

import (
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// Test is a CA whose methods fail the test instead of returning an error. Its server
// certificates are for localhost and the loopback addresses.
type Test struct{ *CA }

// ForTest makes a CA for a test.
func ForTest(t testing.TB) *Test {
	t.Helper()
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return &Test{c}
}

// ServerFiles writes a server certificate with this common name and expiry, and its key, to
// cert.pem and key.pem in dir and returns their paths. It replaces existing files
// atomically.
func (c *Test) ServerFiles(t testing.TB, dir, name string, notAfter time.Time) (certFile, keyFile string) {
	t.Helper()
	template := ServerTemplate("localhost", "127.0.0.1", "::1")
	template.Subject.CommonName, template.NotAfter = name, notAfter
	cert, key, err := pemOf(c.Sign(template))
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	agenttest.ReplaceFile(t, keyFile, key)
	agenttest.ReplaceFile(t, certFile, cert)
	return certFile, keyFile
}

func pemOf(c tls.Certificate, err error) (cert, key []byte, _ error) {
	if err != nil {
		return nil, nil, err
	}
	return PEM(c)
}

// ClientCert makes a certificate for a client.
func (c *Test) ClientCert(t testing.TB) tls.Certificate {
	t.Helper()
	cert, err := c.Client("test client")
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// RootFile writes the CA's certificate to ca.pem in dir and returns its path.
func (c *Test) RootFile(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ca.pem")
	agenttest.ReplaceFile(t, path, c.PEM())
	return path
}
