package outage

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestAsk asks an upstream that falls silent in the middle.
func TestAsk(t *testing.T) {
	u, err := Open(Options{Delay: time.Millisecond, TTL: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	job := Job{Server: u.Addr(), Count: 40, Rate: 400, Name: func(i int) string { return fmt.Sprintf("n%d.test.", i) }}
	job.Each = func(i int) {
		if i == 20 {
			u.Silence()
		}
	}
	fates, err := job.Ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Those just before the silence may fall into it.
	for i, f := range fates {
		if i < 15 && (f.Failed || f.Took < time.Millisecond) || i >= 20 && (!f.Failed || f.Took != patience) {
			t.Errorf("question %d: %+v", i, f)
		}
	}
	if n := u.Asked(); n != 40 {
		t.Errorf("%d questions came, want 40", n)
	}
}

// TestAskTooMuch: more than there are IDs for is no job.
func TestAskTooMuch(t *testing.T) {
	for _, rate := range []int{0, 10_000} {
		if _, err := (Job{Count: 1, Rate: rate}).Ask(t.Context()); err == nil {
			t.Errorf("%d a second are taken", rate)
		}
	}
}

// TestLatest: an ID that comes again belongs to the last question with it.
func TestLatest(t *testing.T) {
	a := &asking{Job: Job{Count: 200_000, Rate: 1000}}
	for _, tt := range []struct {
		id   int
		now  time.Duration
		want int
	}{
		{5, time.Second, 5}, {5, time.Minute, 5}, {5, 66 * time.Second, 65_541}, {60_000, 66 * time.Second, 60_000},
		{5, 132 * time.Second, 131_077}, {1500, time.Second, -1},
	} {
		if got := a.latest(tt.id, tt.now); got != tt.want {
			t.Errorf("ID %d after %s: %d, want %d", tt.id, tt.now, got, tt.want)
		}
	}
}

// TestTLS counts connections over TLS.
func TestTLS(t *testing.T) {
	config, ca, err := Certificate()
	if err != nil {
		t.Fatal(err)
	}
	u, err := Open(Options{TTL: 7, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the certificate is none")
	}
	client := &dns.Client{Net: "tcp-tls", TLSConfig: &tls.Config{RootCAs: roots, ServerName: Host, MinVersion: tls.VersionTLS12}}
	for range 2 {
		m, _, err := client.Exchange(new(dns.Msg).SetQuestion("a.test.", dns.TypeAAAA), u.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Answer) != 0 || len(m.Ns) != 1 {
			t.Errorf("answer\n%v", m)
		}
	}
	if n := u.MostConns(); n < 1 || n > 2 {
		t.Errorf("%d connections at once, want one, or two if the first was seen to end late", n)
	}
}
