package resolver_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
	"github.com/nodens-dns/nodens/upstream"
)

// zoneFile returns the table of the zone f.test with these lines, whose names fall through if through is set.
func zoneFile(t *testing.T, through bool, lines ...string) *zonefile.Table {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	text := "@ 60 SOA ns host 1 2 3 4 30\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.ZoneFile{Path: path, Zones: []wire.Name{resolvertest.ZoneName(t, "f.test")}, Reload: time.Minute}
	if through {
		cfg.Fallthrough = &config.Fallthrough{}
	}
	tab, err := zonefile.New(cfg, zonefile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// TestFile: hosts come before a zone file, and the upstreams after it; an alias that leads out of the zone is
// resolved through the whole path, and the rcode is that of its target.
func TestFile(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := resolvertest.Address("192.0.2.1")(q)
		if strings.HasPrefix(q.Question[0].Name, "no.") {
			m.Answer, m.Rcode = nil, dns.RcodeNameError
		}
		if strings.HasPrefix(q.Question[0].Name, "broken.") {
			m.Answer, m.Rcode = nil, dns.RcodeServerFailure
		}
		return m
	})
	const soa = "f.test. 30 SOA ns.f.test. host.f.test. 1 2 3 4 30"
	for _, tt := range []struct {
		name, want string
		through    bool
	}{
		{"www.f.test.", "NOERROR www.f.test. 60 A 192.0.2.7 | ", false},
		{"by.f.test.", "NOERROR by.f.test. 3600 A 192.0.2.9 | ", false},
		{"other.test.", "NOERROR other.test. 60 A 192.0.2.1 | ", false},
		{"out.f.test.", "NOERROR out.f.test. 60 CNAME other.test.; other.test. 60 A 192.0.2.1 | ", false},
		{"gone.f.test.", "NXDOMAIN gone.f.test. 60 CNAME no.test. | " + soa, false},
		{"fails.f.test.", "SERVFAIL fails.f.test. 60 CNAME broken.test. | ", false},
		{"x.f.test.", "NXDOMAIN  | " + soa, false},
		{"x.f.test.", "NOERROR x.f.test. 60 A 192.0.2.1 | ", true},
		{"dangling.f.test.", "NOERROR dangling.f.test. 60 CNAME x.f.test.; x.f.test. 60 A 192.0.2.1 | ", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			z := &resolver.Zone{
				Name: wire.Root, Stats: resolver.NewStats(), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.f.test"), Forward: resolvertest.Pool(t, b.Addr()),
				File: zoneFile(t, tt.through, "www 60 A 192.0.2.7", "by 60 A 192.0.2.8", "out 60 CNAME other.test.", "gone 60 CNAME no.test.", "fails 60 CNAME broken.test.", "dangling 60 CNAME x"),
			}
			if got := inShort(newDesk(t, z).ask(question(tt.name, dns.TypeA))); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// TestOtherNames: names in none of its zones are refused by a block that has only zones, as in CoreDNS. They are a failure
// of a block with upstreams, and of one that has other sources only.
func TestOtherNames(t *testing.T) {
	pool := upstream.New(&config.Forward{
		From: resolvertest.ZoneName(t, "up.test"), To: []config.Target{{Addr: netip.MustParseAddrPort("127.0.0.1:1")}}, HealthDomain: wire.Root,
	}, upstream.Options{})
	t.Cleanup(func() { _ = pool.Close() })
	for _, tt := range []struct {
		name, qname, want string
		zone              *resolver.Zone
	}{
		{"file", "other.test.", "REFUSED", &resolver.Zone{File: zoneFile(t, false)}},
		{"auto", "other.test.", "REFUSED", &resolver.Zone{Auto: zoneFile(t, false)}},
		{"secondary", "other.test.", "REFUSED", &resolver.Zone{Secondary: zoneFile(t, false)}},
		{"a name that falls through", "no.F.test.", "SERVFAIL", &resolver.Zone{File: zoneFile(t, true)}},
		{"an upstream for a third zone", "other.test.", "SERVFAIL", &resolver.Zone{File: zoneFile(t, false), Forward: []*upstream.Pool{pool}}},
		{"hosts alone", "other.test.", "SERVFAIL", &resolver.Zone{Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.test")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.zone.Name, tt.zone.Stats = wire.Root, resolver.NewStats()
			reply := newDesk(t, tt.zone).ask(question(tt.qname, dns.TypeA))
			if got := dns.RcodeToString[reply.Rcode]; got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
