// These tests start the agent as the other tests of the package do.

package app

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
)

// serveGRPC runs a server of CoreDNS's gRPC service that answers every query with addr.
func serveGRPC(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	return grpcpeer.Serve(t, nil, func(_ context.Context, msg []byte) ([]byte, error) {
		m := new(dns.Msg)
		if err := m.Unpack(msg); err != nil {
			return nil, err
		}
		m.Response = true
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}, A: addr.AsSlice()}}
		return m.Pack()
	})
}

// TestGRPCUpstream: the directive grpc gets what no forward takes, and is counted as in CoreDNS,
// also if a forward names the same address.
func TestGRPCUpstream(t *testing.T) {
	up := serveGRPC(t, netip.MustParseAddr("192.0.2.77"))
	p := peer.Ports(t, 2)
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n cache\n prometheus 127.0.0.1:%d\n grpc . %s\n forward forward.test %s\n}\n", p[0], p[1], up, up))
	for range 2 {
		agenttest.Expect(t, p[0], "www.example.org.", "192.0.2.77")
	}
	code, text := agenttest.Get(t, p[1], "/metrics")
	if code != http.StatusOK {
		t.Fatalf("scrape: %d %s", code, text)
	}
	for _, want := range []string{
		`coredns_grpc_requests_total{to="%s"} 1`,
		`coredns_grpc_responses_total{rcode="NOERROR",to="%s"} 1`,
		`coredns_grpc_request_duration_seconds_count{to="%s"} 1`,
		`coredns_proxy_request_duration_seconds_count{proxy_name="grpc",rcode="NOERROR",to="%s"} 1`,
		`coredns_proxy_conn_cache_misses_total{proto="tcp",proxy_name="grpc",to="%s"} 1`,
		`coredns_forward_requests_total{to="%s"} 0`,
		`nodens_upstream_down{to="%s"} 0`,
	} {
		if want = fmt.Sprintf(want, up); !strings.Contains(text, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	for _, plugin := range []string{"grpc", "cache"} { // a miss and a hit
		if want := `coredns_dns_responses_total{plugin="` + plugin + `",rcode="NOERROR",`; !strings.Contains(text, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if !strings.Contains(text, `coredns_plugin_enabled{name="grpc",`) {
		t.Error("grpc is not listed as a directive of the block")
	}
}
