// Inside the package: the test makes servers suspect, and moves the rotation.

package upstream

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TestCandidates: the order in which a query would try the servers. Looking at it does not change it.
func TestCandidates(t *testing.T) {
	targets := []config.Target{
		{Addr: netip.MustParseAddrPort("192.0.2.1:53")}, {Addr: netip.MustParseAddrPort("192.0.2.2:53")}, {Addr: netip.MustParseAddrPort("192.0.2.3:53")},
	}
	for _, tt := range []struct {
		name    string
		policy  config.Policy
		prepare func(p *Pool)
		want    []byte // last bytes of the addresses
	}{
		{"sequential", config.PolicySequential, func(*Pool) {}, []byte{1, 2, 3}},
		{"sequential", config.PolicySequential, func(p *Pool) { p.servers()[0].suspected.Store(true) }, []byte{2, 3, 1}},
		{"random", config.PolicyRandom, func(*Pool) {}, []byte{1, 2, 3}},
		{"round_robin", config.PolicyRoundRobin, func(*Pool) {}, []byte{1, 2, 3}},
		{"round_robin", config.PolicyRoundRobin, func(p *Pool) { p.order.appendOrder(nil, 3); p.order.appendOrder(nil, 3) }, []byte{3, 1, 2}},
		{"fastest", config.PolicyFastest, func(p *Pool) {
			for i, rtt := range []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond} {
				p.servers()[i].udpRTT.srtt.Store(int64(rtt))
			}
		}, []byte{2, 3, 1}},
	} {
		p := New(&config.Forward{From: wire.Root, Policy: tt.policy, To: targets}, Options{})
		defer p.Close()
		tt.prepare(p)
		for range 3 {
			var got []byte
			for _, c := range p.Candidates(false) {
				got = append(got, c.To.Addr().As4()[3])
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || p.Policy() != tt.name || p.From() != wire.Root {
				t.Errorf("policy %s: %s", p.Policy(), diff)
			}
		}
		if tt.policy == config.PolicyRoundRobin {
			if next := p.order.appendOrder(nil, 3); byte(next[0]+1) != tt.want[0] {
				t.Errorf("the next query begins with server %d, want %d", next[0]+1, tt.want[0])
			}
		}
	}
}
