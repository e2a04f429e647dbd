// These tests use waiting, which is not exported.

package server

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
)

// TestDoHSlowBodies: requests whose bodies don't arrive hold all places of requests. A request of another client
// ends the one that was begun first, with status 503, and is answered; it is counted.
func TestDoHSlowBodies(t *testing.T) {
	const places = 4
	limits := patientLimits()
	limits.Waiting = places
	s, addr, roots := startListener(t, limits, dohConfig, byHand(t))
	tlsCfg := &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}}
	header := "POST /dns-query HTTP/1.1\r\nHost: x\r\nContent-Type: " + dnsMessageType + "\r\nContent-Length: 100\r\n\r\nx"
	var slow []io.Reader
	for i := range places {
		conn, err := dialTLS(addr, tlsCfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn.Conn, header); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn.Conn)
		eventually(t, "the request to be read", func() bool { return s.Usage().Requests.Used == i+1 })
	}
	c := newHTTPSFrom(t, &tls.Config{RootCAs: roots}, "127.0.0.2")
	if m, _, err := c.ask(addr, question("by.hand.", dns.TypeA)); err != nil || len(m.Answer) != 1 {
		t.Errorf("another client: %v, %v", m, err)
	}
	reply := make([]byte, 512)
	if n, err := slow[0].Read(reply); err != nil || !strings.HasPrefix(string(reply[:n]), "HTTP/1.1 503") {
		t.Errorf("the first slow request: %q, %v", reply[:n], err)
	}
	if diff := cmp.Diff(map[string]uint64{"capacity": 0, "client": 1, "upstream": 0}, reasons(s)); diff != "" {
		t.Errorf("turned away (-want +got):\n%s", diff)
	}
	counted := s.listeners[ListenAddr{AddrPort: addr}].config.Load().Routes.Clients.Report(clients.Pods, clients.Minute).Total.Limited
	if counted[clients.ReasonPlaces] != 1 {
		t.Errorf("counted for its client: %v, want one of %v", counted, clients.ReasonPlaces)
	}
}

// TestGroupedClients: addresses of one /64 outside the pods' ranges are one client.
func TestGroupedClients(t *testing.T) {
	s, _ := start(t, Limits{Waiting: 8, PodRanges: new(podrange.Ranges)}, byHand(t))
	var queries [4]pendingQuery
	for i := range queries {
		r := resolver.Request{Client: netip.MustParseAddrPort(fmt.Sprintf("[2001:db8::%d]:53", i))}
		if !s.acquire(&queries[i].place, &r) {
			t.Fatal("no place in an idle server")
		}
		if r.Place != queries[0].place.Client() {
			t.Errorf("address %d is client %d, want %d", i, r.Place, queries[0].place.Client())
		}
	}
	for i := range queries {
		s.waiting.Release(&queries[i].place)
	}
}
