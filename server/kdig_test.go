package server

import (
	"crypto/tls"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/ca"
)

// Inside the package: it shares helpers with the tests of listeners.

// TestKdig checks that Knot's client gets answers over every encrypted transport that it has, which
// it implements with other libraries.
func TestKdig(t *testing.T) {
	if out, err := exec.Command("sh", "../test/install.sh", "kdig").CombinedOutput(); err != nil {
		t.Skipf("kdig can't be installed: %v: %s", err, out)
	}
	cert := mustCertificate(t, writeCertificate(t, ca.ForTest(t), t.TempDir(), "a server", time.Now().Add(time.Hour)))
	for option, via := range map[string]config.Transport{"+tls": config.DNSOverTLS, "+https": config.DNSOverHTTPS, "+quic": config.DNSOverQUIC} {
		t.Run(option, func(t *testing.T) {
			_, addr, _ := startListener(t, patientLimits(), ListenerConfig{Transport: via, Certificate: cert}, byHand(t))
			out, err := exec.Command("kdig", "@"+addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port())), option, "+short", "by.hand.", "A").CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != "192.0.2.9" {
				t.Errorf("kdig %s: %s, error %v", option, got, err)
			}
		})
	}
}

// TestKdigPadding: a reply has a multiple of 468 bytes if its query is padded and nobody can read it, or came over QUIC (RFC 8467, 4.1;
// RFC 9250, 5.4). It is not padded over UDP and TCP.
func TestKdigPadding(t *testing.T) {
	if out, err := exec.Command("sh", "../test/install.sh", "kdig").CombinedOutput(); err != nil {
		t.Skipf("kdig can't be installed: %v: %s", err, out)
	}
	cert := mustCertificate(t, writeCertificate(t, ca.ForTest(t), t.TempDir(), "a server", time.Now().Add(time.Hour)))
	for _, tt := range []struct {
		options string
		via     config.Transport
		padded  bool
	}{
		{"+padding=64 +notcp", config.PlainDNS, false}, {"+padding=64 +tcp", config.PlainDNS, false},
		{"+padding +tls", config.DNSOverTLS, true}, {"+nopadding +edns +tls", config.DNSOverTLS, false},
		{"+padding +https", config.DNSOverHTTPS, true}, {"+nopadding +edns +https", config.DNSOverHTTPS, false},
		{"+padding +quic", config.DNSOverQUIC, true}, {"+nopadding +edns +quic", config.DNSOverQUIC, true}, {"+noedns +nopadding +quic", config.DNSOverQUIC, false},
	} {
		cfg := ListenerConfig{Transport: tt.via}
		if tt.via != config.PlainDNS {
			cfg.Certificate = cert
		}
		_, addr, _ := startListener(t, patientLimits(), cfg, byHand(t))
		args := append([]string{"@" + addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port()))}, strings.Fields(tt.options)...)
		out, err := exec.Command("kdig", append(args, "by.hand.", "A")...).CombinedOutput()
		_, rest, found := strings.Cut(string(out), "Received ")
		size, _ := strconv.Atoi(strings.Fields(rest + " ")[0])
		if padded := size == 468; err != nil || !found || padded != tt.padded {
			t.Errorf("kdig %s: %d bytes, error %v\n%s", tt.options, size, err, out)
		}
	}
}

// TestKdigKeepalive: a client that asks for it is told for how long its connection may be idle, over TCP and TLS only (RFC 7828).
func TestKdigKeepalive(t *testing.T) {
	cert := mustCertificate(t, writeCertificate(t, ca.ForTest(t), t.TempDir(), "a server", time.Now().Add(time.Hour)))
	for network, want := range map[string]bool{"udp": false, "tcp": true, "tcp-tls": true} {
		cfg := ListenerConfig{}
		if network == "tcp-tls" {
			cfg = ListenerConfig{Transport: config.DNSOverTLS, Certificate: cert}
		}
		limits := patientLimits()
		limits.IdleTimeout = 45 * time.Second
		_, addr, _ := startListener(t, limits, cfg, byHand(t))
		client := dns.Client{Net: network, Timeout: patience, TLSConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test's own server
		for _, asks := range []bool{false, true} {
			q := question("by.hand.", dns.TypeA)
			q.SetEdns0(1232, false)
			if asks {
				q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})
			}
			m, _, err := client.Exchange(q, addr.String())
			if err != nil {
				t.Fatal(err)
			}
			var got uint16
			for _, o := range m.IsEdns0().Option {
				if k, ok := o.(*dns.EDNS0_TCP_KEEPALIVE); ok {
					got = k.Timeout
				}
			}
			if has := got == 450; has != (want && asks) {
				t.Errorf("over %s, asked %v: the timeout is %d", network, asks, got)
			}
		}
	}
}
