package outage

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestTLS counts connections over TLS.
func TestTLS(t *testing.T) {
	config, ca, err := upstreamCertificate()
	if err != nil {
		t.Fatal(err)
	}
	u, err := openUpstream(upstreamOptions{TTL: 7, Options: fakedns.Options{TLS: config}})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the certificate is none")
	}
	client := &dns.Client{Net: "tcp-tls", TLSConfig: &tls.Config{RootCAs: roots, ServerName: harness.UpstreamHost, MinVersion: tls.VersionTLS12}}
	for range 2 {
		m, _, err := client.Exchange(new(dns.Msg).SetQuestion("a.test.", dns.TypeAAAA), u.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Answer) != 0 || len(m.Ns) != 1 {
			t.Errorf("answer\n%v", m)
		}
	}
	if n := u.MaxConns(); n < 1 || n > 2 {
		t.Errorf("%d connections at once, want one, or two if the first was seen to end late", n)
	}
}
