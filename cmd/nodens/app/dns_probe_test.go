// These tests use answersDNS, which is not exported.

package app

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestAnswersDNS: the agent answers the probe whatever its zones and policies are, and without
// counting it in a zone.
func TestAnswersDNS(t *testing.T) {
	for name, body := range map[string]string{
		"a zone":          "example.org:%d {\n bind 127.0.0.1\n whoami\n}\n",
		"all addresses":   ".:%d {\n whoami\n}\n",
		"IPv6":            ".:%d {\n bind ::1\n whoami\n}\n",
		"policies":        ".:%d {\n bind 127.0.0.1\n acl {\n  drop\n }\n whoami\n}\n",
		"a dead upstream": ".:%d {\n bind 127.0.0.1\n forward . 127.0.0.1:1\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := lookedAt(t, fmt.Sprintf(body, peer.Ports(t, 1)[0]))
			ctx, cancel := context.WithTimeout(t.Context(), agenttest.Timeout)
			defer cancel()
			if !l.answersDNS(ctx) {
				t.Error("the agent does not answer")
			}
			if s := l.statistics(); len(s.Zones) != 1 || s.Zones[0].Queries != 0 {
				t.Errorf("the probe is counted: %+v", s.Zones)
			}
		})
	}
}

// TestAnswersDNSWithoutReaders: a probe that nothing answers ends with its context.
func TestAnswersDNSWithoutReaders(t *testing.T) {
	l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n whoami\n}\n", peer.Ports(t, 1)[0]))
	err := l.server.Suspend(t.Context(), nil) // as a predecessor, whose socket stays open
	check.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if l.answersDNS(ctx) {
		t.Error("an agent that does not read answers")
	}
}

// TestProbeAddr: the probe goes to the lowest address for plain DNS.
func TestProbeAddr(t *testing.T) {
	for _, tc := range []struct {
		listen map[string]config.Transport
		want   string
	}{
		{nil, "invalid AddrPort"},
		{map[string]config.Transport{"192.0.2.1:853": config.DNSOverTLS}, "invalid AddrPort"},
		{map[string]config.Transport{"192.0.2.1:853": config.DNSOverTLS, "192.0.2.3:53": config.PlainDNS, "192.0.2.2:53": config.PlainDNS}, "192.0.2.2:53"},
		{map[string]config.Transport{"0.0.0.0:53": config.PlainDNS}, "127.0.0.1:53"},
		{map[string]config.Transport{"[::]:53": config.PlainDNS}, "[::1]:53"},
	} {
		g := newGeneration(nil)
		for addr, transport := range tc.listen {
			g.listeners[server.ListenAddr{AddrPort: netip.MustParseAddrPort(addr)}] = server.ListenerConfig{Transport: transport}
		}
		if got, ok := probeAddr(g); got.String() != tc.want || ok != got.IsValid() {
			t.Errorf("%v: %v, %t; want %s", tc.listen, got, ok, tc.want)
		}
	}
}
