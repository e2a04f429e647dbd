package scenario

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
	"net/netip"
	"os"
	"path/filepath"
	"time"
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
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer() (*issuer, error) {
	a := new(issuer)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "scenario"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
	}
	der, key, err := sign(template, nil)
	if err != nil {
		return nil, err
	}
	a.key = key
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// sign makes a key and a certificate for it, signed by ca, nil for by itself.
func sign(template *x509.Certificate, ca *issuer) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	parent, signer := template, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer); err != nil {
		return nil, nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return der, key, nil
}

// issue makes the certificate of the server at addr.
func (a *issuer) issue(c certificate, addr netip.Addr) (tls.Certificate, error) {
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: serverName}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   now.Add(-24 * time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
	if c.expired {
		template.NotAfter = now.Add(-time.Hour)
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
	der, key, err := sign(template, a)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// pool trusts what a signs.
func (a *issuer) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
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
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		return fmt.Errorf("writing a key: %w", err)
	}
	for name, block := range map[string]*pem.Block{
		caFile:   {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		certFile: {Type: "CERTIFICATE", Bytes: own.Certificate[0]},
		keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}
