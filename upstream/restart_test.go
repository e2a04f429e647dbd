package upstream_test

import (
	"crypto/tls"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/upstream"
)

// TestRestartOfTheOnlyServer: over each transport, a query that finds nobody at the server's address gets its answer when the server is
// back.
func TestRestartOfTheOnlyServer(t *testing.T) {
	authority := ca.ForTest(t)
	cert, err := authority.Server("dns.test")
	if err != nil {
		t.Fatal(err)
	}
	root := authority.RootFile(t, t.TempDir())
	secure := &tls.Config{Certificates: []tls.Certificate{cert}}
	for name, tt := range map[string]struct {
		over    config.Transport
		options fakedns.Options
		tcp     bool
	}{
		"UDP":   {over: config.PlainDNS},
		"TCP":   {over: config.PlainDNS, tcp: true},
		"TLS":   {over: config.DNSOverTLS, options: fakedns.Options{TLS: secure}},
		"HTTPS": {over: config.DNSOverHTTPS, options: fakedns.Options{TLS: secure, HTTPS: true}},
		"QUIC":  {over: config.DNSOverQUIC, options: fakedns.Options{TLS: secure, QUIC: true}},
	} {
		t.Run(name, func(t *testing.T) {
			addr := unusedAddr(t)
			p := upstream.New(&config.Forward{
				From: wire.Root, To: []config.Target{{Transport: tt.over, Addr: addr}}, ReadTimeout: 20 * time.Second, Expire: time.Minute,
				ForceTCP: tt.tcp, TLS: &config.TLSClient{CA: root}, ServerName: "dns.test",
			}, upstream.Options{Deadline: 30 * time.Second})
			defer p.Close()
			m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
			b, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			var q wire.Query
			q.Parse(b)
			type result struct {
				answer wire.Response
				err    error
			}
			done := make(chan result, 1)
			go func() {
				answer, err := p.ExchangeFrom(t.Context(), &q, upstream.From{Client: 1})
				done <- result{answer, err}
			}()
			if name != "QUIC" { // which goes on connecting by itself
				waitFor(t, func() bool { return p.Stats().Servers[0].Unanswered > 0 })
			}
			tt.options.Addr = addr
			fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 60, "192.0.2.1") }), tt.options)
			if r := <-done; r.err != nil || r.answer.Answers != 1 {
				t.Errorf("%d answers, error %v", r.answer.Answers, r.err)
			}
		})
	}
}

// unusedAddr returns an address at which nothing listens.
func unusedAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	s := fakedns.Start(t, nil)
	addr := s.Addr()
	s.Close()
	return addr
}

// waitFor waits until ok returns true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for give := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(give) {
			t.Fatal("nothing happens")
		}
	}
}
