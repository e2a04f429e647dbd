package ca_test

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/ca"
)

// TestSign verifies certificates against the CA that signed them and against another one.
func TestSign(t *testing.T) {
	c, other := ca.ForTest(t), ca.ForTest(t)
	for _, tt := range []struct {
		name     string
		template *x509.Certificate
		signer   *ca.Test
		valid    bool
	}{
		{"good", ca.ServerTemplate("dns.test"), c, true},
		{"other CA", ca.ServerTemplate("dns.test"), other, false},
		{"other name", ca.ServerTemplate("x.test"), c, false},
		{"expired", &x509.Certificate{DNSNames: []string{"dns.test"}, NotAfter: time.Now().Add(-time.Hour)}, c, false},
		{"client's", &x509.Certificate{DNSNames: []string{"dns.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, c, false},
	} {
		signed, err := tt.signer.Sign(tt.template)
		if err != nil {
			t.Fatal(err)
		}
		cert, key, err := ca.PEM(signed)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: c.Pool(), DNSName: "dns.test"}); (err == nil) != tt.valid {
			t.Errorf("%s: %v, want valid %t", tt.name, err, tt.valid)
		}
	}
	if p := x509.NewCertPool(); !p.AppendCertsFromPEM(c.PEM()) || !p.Equal(c.Pool()) {
		t.Error("the CA's PEM is not its certificate")
	}
}

// TestFiles reads back what the CA writes.
func TestFiles(t *testing.T) {
	c, dir := ca.ForTest(t), t.TempDir()
	certFile, keyFile := c.ServerFiles(t, dir, "a server", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: c.Pool(), DNSName: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	clientCert, clientKey := filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	if err := ca.WriteFiles(c.ClientCert(t), clientCert, clientKey); err != nil {
		t.Fatal(err)
	}
	if pair, err = tls.LoadX509KeyPair(clientCert, clientKey); err != nil {
		t.Fatal(err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: c.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
}
