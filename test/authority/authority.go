// Package authority issues certificates to tests and benchmarks.
//
// An [Authority] makes a key for each certificate and signs what it is told to: names,
// addresses, times and usages are the caller's, so that there can be certificates with
// something wrong about them. What is made stays in memory until somebody writes it.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// Authority issues certificates. It is not changed once it is made, and safe for
// concurrent use.
type Authority struct {
	// Cert is the authority's own certificate.
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority that nobody else knows.
func New() (*Authority, error) {
	a := new(Authority)
	own, err := a.Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	if err != nil {
		return nil, err
	}
	a.key = own.PrivateKey.(*ecdsa.PrivateKey)
	a.Cert, err = x509.ParseCertificate(own.Certificate[0])
	return a, err
}

// day is how long certificates are good, before now and after: any test run, and too
// short for a copy of them to be of use.
const day = 24 * time.Hour

// Issue makes a key and signs c, which gets a serial number, for it. A certificate
// without times is good for a day around now, and one without usages is for servers and
// for clients.
func (a *Authority) Issue(c *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a key: %w", err)
	}
	now := time.Now()
	c.SerialNumber = big.NewInt(now.UnixNano())
	if c.NotBefore.IsZero() {
		c.NotBefore = now.Add(-day)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = now.Add(day)
	}
	if !c.IsCA {
		c.KeyUsage = x509.KeyUsageDigitalSignature
		if c.ExtKeyUsage == nil {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}
	}
	parent, signer := a.Cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("signing a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Pool trusts what a signs.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Cert)
	return p
}

// PEM is a's own certificate as a file holds it.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})
}

// PEM is the certificate and its key as files hold them.
func PEM(c tls.Certificate) (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("writing a key: %w", err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
