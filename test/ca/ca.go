// Package ca is the certificate authority of all tests and benchmarks.
//
// A [CA] signs certificates with a new key each and keeps them in memory; [WriteFiles]
// writes them as PEM. [CA.Server] and [CA.Client] make ordinary certificates. [CA.Sign]
// takes a template, so that tests can make certificates that are expired, for another name
// or without the usage they need. [ForTest] wraps a CA for callers that have a testing.TB.
package ca

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
	"net"
	"os"
	"time"
)

// CA is a certificate authority. It is immutable and safe for concurrent use.
type CA struct {
	// Cert is the CA's own certificate.
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes a CA with a key of its own.
func New() (*CA, error) {
	c := new(CA)
	own, err := c.Sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	if err != nil {
		return nil, err
	}
	c.key = own.PrivateKey.(*ecdsa.PrivateKey)
	c.Cert, err = x509.ParseCertificate(own.Certificate[0])
	return c, err
}

// validity is how long certificates are valid, before and after now: longer than any test
// run.
const validity = 24 * time.Hour

// Sign makes a key and a certificate from the template, which Sign completes: with a serial
// number, with a validity of a day around now where it has none, and with the usages of
// servers and clients where it has none.
func (c *CA) Sign(template *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("generating a key: %w", err)
	}
	now := time.Now()
	template.SerialNumber = big.NewInt(now.UnixNano())
	if template.NotBefore.IsZero() {
		template.NotBefore = now.Add(-validity)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = now.Add(validity)
	}
	if !template.IsCA {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		if template.ExtKeyUsage == nil {
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}
	}
	parent, signer := c.Cert, c.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("signing a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Server makes a certificate for a server with these names and IP addresses.
func (c *CA) Server(hosts ...string) (tls.Certificate, error) {
	return c.Sign(ServerTemplate(hosts...))
}

// ServerTemplate is the template of [CA.Server], for a caller that changes it first.
func ServerTemplate(hosts ...string) *x509.Certificate {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "test server"}}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return template
}

// Client makes a certificate for a client with this common name, which no server can use.
func (c *CA) Client(name string) (tls.Certificate, error) {
	return c.Sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Pool returns a new pool with the CA's certificate.
func (c *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(c.Cert)
	return p
}

// PEM returns the CA's certificate as PEM.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Cert.Raw})
}

// PEM returns the certificate and its key as PEM.
func PEM(c tls.Certificate) (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding a key: %w", err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// WriteFiles writes the certificate and its key to files as PEM.
func WriteFiles(c tls.Certificate, certFile, keyFile string) error {
	cert, key, err := PEM(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(certFile, cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(keyFile, key, 0o600)
}
