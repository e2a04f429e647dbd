package resolver_test

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/dnstap"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestTaps: each collector of the zone receives a query and its reply, and of a query without a reply
// the query alone.
func TestTaps(t *testing.T) {
	// A tap without a queue drops all messages, and counts them.
	tap := func() resolver.Tap {
		return resolver.Tap{To: dnstap.New(config.Dnstap{}, "", slog.New(slog.DiscardHandler))}
	}
	z := &resolver.Zone{Name: wire.Root, Whoami: true, Taps: []resolver.Tap{tap(), tap()}, ACL: aclOf(t, "acl {\ndrop net 192.0.2.9\n}")}
	d := newDesk(t, z)
	for _, step := range []struct {
		client string
		want   uint64
	}{{"192.0.2.1:53", 2}, {"192.0.2.9:53", 3}, {"192.0.2.1:53", 5}} {
		d.from(step.client, resolver.UDP).ask(question("example.org.", dns.TypeA))
		for i := range z.Taps {
			if n := z.Taps[i].To.Dropped(); n != step.want {
				t.Errorf("collector %d received %d messages, want %d", i, n, step.want)
			}
		}
	}
}

// TestVerdictsOfAllStripes: queries are counted on stripes, and the sum is that of all stripes.
func TestVerdictsOfAllStripes(t *testing.T) {
	z := &resolver.Zone{Name: wire.Root, Whoami: true, ACL: aclOf(t, "acl {\nblock net 192.0.2.9\n}")}
	d := newDesk(t, z)
	const queries = 40
	for i := range queries {
		d.x.Stripe = i
		d.from("192.0.2.9:53", resolver.UDP).ask(question("example.org.", dns.TypeA))
		d.from("192.0.2.1:53", resolver.UDP).ask(question("example.org.", dns.TypeA))
	}
	want := resolver.Verdicts{Allowed: queries, Blocked: map[wire.Name]uint64{wire.Root: queries}}
	if diff := cmp.Diff(want, z.Stats.Verdicts()); diff != "" {
		t.Error(diff)
	}
}

// TestTransportOfUpstream: an upstream is asked over the client's transport.
func TestTransportOfUpstream(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1"))
	for proto, want := range map[resolver.Proto]string{resolver.UDP: fakedns.UDP, resolver.TCP: fakedns.TCP} {
		for _, c := range []bool{false, true} {
			z := &resolver.Zone{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr())}
			if c {
				z.Cache = resolvertest.Cache()
			}
			before := len(b.Queries())
			newDesk(t, z).from("192.0.2.9:53", proto).ask(question("www.example.org.", dns.TypeA))
			asked := b.Queries()[before:]
			if len(asked) != 1 || asked[0].Transport != want {
				t.Errorf("%v, cache %t: the upstream was asked %v", proto, c, asked)
			}
		}
	}
}
