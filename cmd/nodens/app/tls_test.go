package app

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestTLSListeners: one block over all transports, whose certificate is replaced while it
// runs, and whose numbers have CoreDNS's labels.
func TestTLSListeners(t *testing.T) {
	t.Parallel() // it waits for the agent to look at files
	p := peer.Ports(t, 4)
	plain, dot, doh, web := p[0], p[1], p[2], p[3]
	authority, folder := ca.ForTest(t), t.TempDir()
	until := time.Now().Add(time.Hour)
	cert, key := authority.ServerFiles(t, folder, "first", until)
	corefile := fmt.Sprintf(".:%d tls://.:%d https://.:%d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%d\n tls %s %s\n hosts {\n 192.0.2.9 by.hand\n }\n}\n",
		plain, dot, doh, web, cert, key)
	r := startAgent(t, corefile)
	trust := &tls.Config{RootCAs: authority.Pool()}
	client := dns.Client{Net: "tcp-tls", TLSConfig: trust, Timeout: agenttest.Timeout}
	overTLS := func() error {
		m, _, err := client.Exchange(new(dns.Msg).SetQuestion("by.hand.", dns.TypeA), fmt.Sprintf("127.0.0.1:%d", dot))
		if err == nil && len(m.Answer) != 1 {
			err = fmt.Errorf("no answer: %v", m)
		}
		return err
	}
	overHTTPS := func() error {
		web := &http.Client{Timeout: agenttest.Timeout, Transport: &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true}}
		defer web.CloseIdleConnections()
		packet, err := new(dns.Msg).SetQuestion("by.hand.", dns.TypeA).Pack()
		if err != nil {
			return err
		}
		resp, err := web.Post(fmt.Sprintf("https://127.0.0.1:%d/dns-query", doh), "application/dns-message", bytes.NewReader(packet))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			return fmt.Errorf("%s over %s", resp.Status, resp.Proto)
		}
		return nil
	}
	for _, err := range []error{overTLS(), overHTTPS()} {
		check.NoError(t, err)
	}
	agenttest.Expect(t, plain, "by.hand.", "192.0.2.9")
	has := func(lines ...string) bool {
		_, text := agenttest.Get(t, web, "/metrics")
		for _, line := range lines {
			if !strings.Contains(text, line+"\n") {
				t.Logf("no %s", line)
				return false
			}
		}
		return true
	}
	if !has(
		fmt.Sprintf(`coredns_dns_requests_total{family="1",proto="tcp",server="tls://127.0.0.1:%d",type="A",view="",zone="."} 1`, dot),
		fmt.Sprintf(`coredns_dns_requests_total{family="1",proto="tcp",server="https://127.0.0.1:%d",type="A",view="",zone="."} 1`, doh),
		fmt.Sprintf(`coredns_dns_requests_total{family="1",proto="udp",server="dns://127.0.0.1:%d",type="A",view="",zone="."} 1`, plain),
		fmt.Sprintf(`coredns_dns_https_responses_total{server="https://127.0.0.1:%d",status="200"} 1`, doh),
		fmt.Sprintf(`nodens_tls_certificate_expiry_timestamp_seconds{file=%q} %g`, cert, float64(until.Unix())),
		fmt.Sprintf(`nodens_tls_reload_failed_total{file=%q} 0`, cert),
		`nodens_tls_handshakes_failed_total 0`,
	) {
		t.Fatal("numbers are missing")
	}
	shown := func() string {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", dot), trust)
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	authority.ServerFiles(t, folder, "second", until)
	r.Await("the new certificate", func() bool { return shown() == "second" })
	agenttest.ReplaceFile(t, cert, []byte("broken"))
	r.Await("the broken one to be counted", func() bool { return has(fmt.Sprintf(`nodens_tls_reload_failed_total{file=%q} 1`, cert)) })
	if got := shown(); got != "second" {
		t.Errorf("with a broken file: %s", got)
	}
	if err := overTLS(); err != nil {
		t.Error(err)
	}
	authority.ServerFiles(t, folder, "third", until)
	r.Reload(strings.Replace(corefile, "hosts", "timeouts {\n idle 20s\n }\n hosts", 1), "the new configuration is in force")
	r.Await("the next certificate", func() bool { return shown() == "third" })
	if err := overHTTPS(); err != nil {
		t.Error(err)
	}
}
