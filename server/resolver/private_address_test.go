package resolver_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// TestPrivateAddressWarnings: a reply is counted once for each time that it comes from an upstream, and a name gets one warning an
// hour. The memory of names is bounded.
func TestPrivateAddressWarnings(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("169.254.169.254"))
	for name, c := range map[string]struct {
		action config.PrivateAction
		rcode  int
		answer bool
	}{
		"count": {config.PrivateCount, dns.RcodeSuccess, true}, "nodata": {config.PrivateNoData, dns.RcodeSuccess, false},
		"refuse": {config.PrivateRefuse, dns.RcodeRefused, false}, "off": {config.PrivateOff, dns.RcodeSuccess, true},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			now := 100 * time.Hour
			cfg := config.DefaultPrivateAddress()
			cfg.Action = c.action
			z := &resolver.Zone{
				Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Stats: resolver.NewStats(),
				PrivateAddress: resolver.NewPrivateAddress(cfg, slog.New(slog.NewTextHandler(&log, nil)), func() time.Duration { return now }),
			}
			d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
			replies := 0
			ask := func(name string) {
				t.Helper()
				if m := d.ask(question(name, dns.TypeA)); m.Rcode != c.rcode || len(m.Answer) > 0 != c.answer {
					t.Fatalf("%s: got %v", name, m)
				}
				replies++
			}
			for range 3 {
				ask("a.test.")
			}
			now += time.Hour
			ask("a.test.")
			lines := strings.Count(log.String(), "qname=a.test.")
			if want := 2; c.action != config.PrivateOff && lines != want || c.action == config.PrivateOff && lines != 0 {
				t.Errorf("%d warnings about one name in two hours:\n%s", lines, log.String())
			}
			for i := range 200 {
				ask(fmt.Sprintf("n%d.test.", i))
			}
			if n := strings.Count(log.String(), "\n"); n > 70 {
				t.Errorf("%d warnings about 201 names", n)
			}
			passed, denied := z.Stats.PrivateAddresses()
			wantPassed, wantDenied := uint64(0), uint64(0)
			switch c.action {
			case config.PrivateCount:
				wantPassed = uint64(replies)
			case config.PrivateNoData, config.PrivateRefuse:
				wantDenied = uint64(replies)
			}
			if passed != wantPassed || denied != wantDenied {
				t.Errorf("%d replies are counted as passed and %d as denied, want %d and %d", passed, denied, wantPassed, wantDenied)
			}
		})
	}
}

// TestPrivateAddressOncePerReply: a hit of the cache is not looked at.
func TestPrivateAddressOncePerReply(t *testing.T) {
	b := resolvertest.StartBackend(t, resolvertest.Address("127.0.0.1"))
	limits := config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}
	z := &resolver.Zone{
		Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Stats: resolver.NewStats(),
		Cache:          cache.NewStore(1<<20, cache.Options{}).NewCache(&config.Cache{Success: limits, Denial: limits}),
		PrivateAddress: resolver.NewPrivateAddress(nil, slog.New(slog.DiscardHandler), nil),
	}
	d := newDesk(t, z).from("192.0.2.1:53", resolver.UDP)
	for range 5 {
		d.ask(question("a.test.", dns.TypeA))
	}
	if passed, _ := z.Stats.PrivateAddresses(); passed != 1 {
		t.Errorf("%d replies are counted, want 1", passed)
	}
}

// TestPrivateAddressRanges: which addresses are in the default ranges.
func TestPrivateAddressRanges(t *testing.T) {
	for addr, want := range map[string]bool{
		"169.254.169.254": true, "127.0.0.53": true, "::1": true, "fe80::1": true, "fd00:ec2::254": true, "100.100.100.200": true,
		"10.96.0.1": true, "fd00:96::1": true, // of Services
		"::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "::127.0.0.1": true,
		"10.0.0.1": false, "192.0.2.1": false, "0.0.0.0": false, "2001:db8::1": false, "64:ff9b::c000:201": false, "fd00::1": false,
	} {
		a := netip.MustParseAddr(addr)
		b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
			m := new(dns.Msg).SetReply(q)
			rrtype := "A"
			if a.Is6() {
				rrtype = "AAAA"
			}
			rr, err := dns.NewRR(fmt.Sprintf("%s 60 IN %s %s", q.Question[0].Name, rrtype, addr))
			if err != nil {
				t.Error(err)
				return nil
			}
			m.Answer = append(m.Answer, rr)
			return m
		})
		z := &resolver.Zone{
			Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Stats: resolver.NewStats(),
			PrivateAddress: resolver.NewPrivateAddress(nil, slog.New(slog.DiscardHandler), nil),
			IsClusterIP: func(addr netip.Addr) bool {
				return addr == netip.MustParseAddr("10.96.0.1") || addr == netip.MustParseAddr("fd00:96::1")
			},
		}
		qtype := dns.TypeA
		if a.Is6() {
			qtype = dns.TypeAAAA
		}
		newDesk(t, z).from("192.0.2.1:53", resolver.UDP).ask(question("a.test.", qtype))
		if passed, _ := z.Stats.PrivateAddresses(); passed == 1 != want {
			t.Errorf("%s is private: %v, want %v", addr, passed == 1, want)
		}
	}
}
