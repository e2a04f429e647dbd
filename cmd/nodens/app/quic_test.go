package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// askQUIC asks for by.hand. over a connection of its own and returns the number of records.
func askQUIC(addr string, trust *tls.Config) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), agenttest.Timeout)
	defer cancel()
	trust = trust.Clone()
	trust.NextProtos = []string{"doq"}
	conn, err := quic.DialAddr(ctx, addr, trust, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.CloseWithError(0, "") }()
	str, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return 0, err
	}
	q := new(dns.Msg).SetQuestion("by.hand.", dns.TypeA)
	q.Id = 0
	packet, err := q.Pack()
	if err != nil {
		return 0, err
	}
	if _, err := str.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)); err != nil {
		return 0, err
	}
	if err := str.Close(); err != nil {
		return 0, err
	}
	reply, err := io.ReadAll(str)
	if err != nil || len(reply) < 2 {
		return 0, fmt.Errorf("%d bytes: %w", len(reply), err)
	}
	m := new(dns.Msg)
	return len(m.Answer), m.Unpack(reply[2:])
}

// askHTTP3 returns the status of a request for by.hand.
func askHTTP3(t *testing.T, addr string, trust *tls.Config) int {
	t.Helper()
	transport := &http3.Transport{TLSClientConfig: trust.Clone()}
	defer func() { _ = transport.Close() }()
	client := &http.Client{Timeout: agenttest.Timeout, Transport: transport}
	packet, err := new(dns.Msg).SetQuestion("by.hand.", dns.TypeA).Pack()
	check.NoError(t, err)
	resp, err := client.Post("https://"+addr+"/dns-query", "application/dns-message", bytes.NewReader(packet))
	check.NoError(t, err)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestQUICListeners checks the transports over QUIC on the ports of TLS and HTTPS, before and
// after a reload that sets limits, and their metrics.
func TestQUICListeners(t *testing.T) {
	t.Parallel() // it waits for the agent to look at files
	p := peer.Ports(t, 3)
	authority := ca.ForTest(t)
	cert, key := authority.ServerFiles(t, t.TempDir(), "first", time.Now().Add(time.Hour))
	corefile := fmt.Sprintf("tls://.:%[1]d quic://.:%[1]d https://.:%[2]d https3://.:%[2]d {\n bind 127.0.0.1\n prometheus 127.0.0.1:%[3]d\n tls %[4]s %[5]s\n hosts {\n 192.0.2.9 by.hand\n }\n}\n",
		p[0], p[1], p[2], cert, key)
	r := startAgent(t, corefile)
	trust := &tls.Config{RootCAs: authority.Pool()}
	doq, doh3 := fmt.Sprintf("127.0.0.1:%d", p[0]), fmt.Sprintf("127.0.0.1:%d", p[1])
	ask := func() {
		t.Helper()
		if _, err := askQUIC(doq, trust); err != nil {
			t.Errorf("over QUIC: %v", err)
		}
		if got := askHTTP3(t, doh3, trust); got != http.StatusOK {
			t.Errorf("over HTTP/3: %d", got)
		}
	}
	ask()
	agenttest.ExpectMetrics(t, p[2],
		fmt.Sprintf(`coredns_dns_requests_total{family="1",proto="udp",server="quic://%s",type="A",view="",zone="."} 1`, doq)+"\n",
		fmt.Sprintf(`coredns_dns_requests_total{family="1",proto="udp",server="https3://%s",type="A",view="",zone="."} 1`, doh3)+"\n",
		fmt.Sprintf(`coredns_dns_quic_responses_total{server="quic://%s",status="0x0"} 1`, doq)+"\n",
		fmt.Sprintf(`coredns_dns_https3_responses_total{server="https3://%s",status="200"} 1`, doh3)+"\n",
	)
	r.Reload(strings.Replace(corefile, "hosts", "quic {\n max_streams 4\n }\n hosts", 1), "the new configuration is in force")
	ask()
}
