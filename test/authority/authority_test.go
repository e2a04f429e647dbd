package authority

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"
)

// TestIssue holds what is signed against the one who signs, and against another.
func TestIssue(t *testing.T) {
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	other, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		cert     x509.Certificate
		by       *Authority
		verifies bool
	}{
		{"good", x509.Certificate{DNSNames: []string{"dns.test"}}, a, true},
		{"by another", x509.Certificate{DNSNames: []string{"dns.test"}}, other, false},
		{"for another", x509.Certificate{DNSNames: []string{"x.test"}}, a, false},
		{"expired", x509.Certificate{DNSNames: []string{"dns.test"}, NotAfter: time.Now().Add(-time.Hour)}, a, false},
	} {
		made, err := tt.by.Issue(&tt.cert)
		if err != nil {
			t.Fatal(err)
		}
		cert, key, err := PEM(made)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: "dns.test"}); (err == nil) != tt.verifies {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if p := x509.NewCertPool(); !p.AppendCertsFromPEM(a.PEM()) || !p.Equal(a.Pool()) {
		t.Error("the authority's PEM is not its certificate")
	}
}
