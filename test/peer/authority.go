package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates. Its methods end the test where they fail.
type Authority struct {
	// Pool holds the authority's own certificate.
	Pool *x509.CertPool
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority that nobody else knows.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{Pool: x509.NewCertPool()}
	der, key := a.sign(t, "a root", time.Now().Add(time.Hour))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = cert, key
	a.Pool.AddCert(cert)
	return a
}

// sign makes a certificate for loopback; the first one is the authority's own.
func (a *Authority) sign(t testing.TB, name string, until time.Time) (der []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"localhost"},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        a.cert == nil, BasicConstraintsValid: true,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = cert, key
	}
	if der, err = x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer); err != nil {
		t.Fatal(err)
	}
	return der, key
}

// Issue writes a certificate for loopback and its key to cert.pem and key.pem in
// folder, each by way of a new file that takes the place of the old one.
func (a *Authority) Issue(t testing.TB, folder, name string, until time.Time) (cert, key string) {
	t.Helper()
	der, private := a.sign(t, name, until)
	bytes, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	Replace(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes}))
	Replace(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, key
}

// Client makes a certificate for a client.
func (a *Authority) Client(t testing.TB) tls.Certificate {
	t.Helper()
	der, key := a.sign(t, "a client", time.Now().Add(time.Hour))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Root writes the authority's own certificate to ca.pem in folder and gives its path.
func (a *Authority) Root(t testing.TB, folder string) string {
	t.Helper()
	path := filepath.Join(folder, "ca.pem")
	Replace(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
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
