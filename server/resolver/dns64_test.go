package resolver_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// sixless is an upstream that knows these names. What it knows of no record of theirs
// has a SOA record, but for bare.test.
func sixless(q *dns.Msg) *dns.Msg {
	name, qtype := strings.ToLower(q.Question[0].Name), dns.TypeToString[q.Question[0].Qtype]
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable, m.Compress = true, true
	records := map[string]string{
		"v4.test. A":      "v4.test. 1000 A 192.0.2.1;v4.test. 20 A 192.0.2.2",
		"both.test. A":    "both.test. 100 A 192.0.2.3",
		"both.test. AAAA": "both.test. 100 AAAA 2001:db8::3",
		"alias.test. A":   "alias.test. 50 CNAME v4.test.;v4.test. 1000 A 192.0.2.1", "alias.test. AAAA": "alias.test. 50 CNAME v4.test.",
		"bare.test. A": "bare.test. 700 A 192.0.2.5",
		"fail.test. A": "fail.test. 100 A 192.0.2.4",
		"lb.test. A":   "lb.test. 900 A 192.0.2.6",
	}[name+" "+qtype]
	for line := range strings.SplitSeq(records, ";") {
		if rr, err := dns.NewRR(line); err == nil && rr != nil {
			m.Answer = append(m.Answer, rr)
		}
	}
	switch {
	case name == "none.test.":
		m.Rcode = dns.RcodeNameError
	case name == "fail.test." && qtype == "AAAA" || name == "late.test." && qtype == "A":
		m.Rcode = dns.RcodeServerFailure
	case name == "silent.test.":
		return nil
	}
	if !strings.Contains(records, " "+qtype+" ") && name != "bare.test." && m.Rcode != dns.RcodeServerFailure {
		soa, err := dns.NewRR("test. 300 SOA ns.test. host.test. 1 2 3 4 300")
		if err != nil {
			panic(err)
		}
		m.Ns = []dns.RR{soa}
	}
	return m
}

func mapping(t testing.TB, edit func(*config.DNS64)) *resolver.DNS64 {
	t.Helper()
	cfg := &config.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96")}
	edit(cfg)
	return resolver.NewDNS64(cfg)
}

const soa300 = "test. 300 SOA ns.test. host.test. 1 2 3 4 300"

func TestDNS64(t *testing.T) {
	usual, all, four := func(*config.DNS64) {}, func(c *config.DNS64) { c.TranslateAll = true }, func(c *config.DNS64) { c.AllowIPv4 = true }
	const v4, v6 = "192.0.2.77:53", "[2001:db8::77]:53"
	b := resolvertest.StartBackend(t, sixless)
	for _, tt := range []struct {
		name, client string
		edit         func(*config.DNS64)
		query, want  string
	}{
		{"made of IPv4", v6, usual, "V4.test. AAAA", "NOERROR | V4.test. 300 AAAA 64:ff9b::c000:201, V4.test. 20 AAAA 64:ff9b::c000:202"},
		{"client of IPv4", v4, usual, "v4.test. AAAA", "NOERROR |  | " + soa300},
		{"client of IPv4 in IPv6", "[::ffff:192.0.2.77]:53", usual, "v4.test. AAAA", "NOERROR |  | " + soa300},
		{"client of IPv4 that may", v4, four, "v4.test. AAAA", "NOERROR | v4.test. 300 AAAA 64:ff9b::c000:201, v4.test. 20 AAAA 64:ff9b::c000:202"},
		{"other types", v6, usual, "v4.test. A", "NOERROR | v4.test. 1000 A 192.0.2.1, v4.test. 20 A 192.0.2.2"},
		{"has some", v6, usual, "both.test. AAAA", "NOERROR | both.test. 100 AAAA 2001:db8::3"},
		{"all", v6, all, "both.test. AAAA", "NOERROR | both.test. 100 AAAA 64:ff9b::c000:203"},
		{"alias", v6, usual, "alias.test. AAAA", "NOERROR | alias.test. 50 CNAME v4.test., v4.test. 300 AAAA 64:ff9b::c000:201"},
		{"no SOA", v6, usual, "bare.test. AAAA", "NOERROR | bare.test. 600 AAAA 64:ff9b::c000:205"},
		{"no such name", v6, usual, "none.test. AAAA", "NXDOMAIN |  | " + soa300},
		{"neither", v6, usual, "neither.test. AAAA", "NOERROR |  | " + soa300},
		{"error", v6, usual, "fail.test. AAAA", "NOERROR | fail.test. 100 AAAA 64:ff9b::c000:204"},
		{"error after it", v6, usual, "late.test. AAAA", "SERVFAIL"},
		{"validates itself", v6, usual, "v4.test. AAAA do cd", "NOERROR |  | " + soa300},
		{"does not check", v6, usual, "v4.test. AAAA cd", "NOERROR | v4.test. 300 AAAA 64:ff9b::c000:201, v4.test. 20 AAAA 64:ff9b::c000:202"},
		{"wants signatures", v6, usual, "v4.test. AAAA do", "NOERROR | v4.test. 300 AAAA 64:ff9b::c000:201, v4.test. 20 AAAA 64:ff9b::c000:202"},
		{"the machine's own", v6, usual, "a.localhost. AAAA", "NOERROR | a.localhost. 604800 AAAA ::1"},
		{"by hand", v6, usual, "by.hand. AAAA", "NOERROR | by.hand. 600 AAAA 64:ff9b::c000:209"},
	} {
		z := &resolver.Zone{
			Name: wire.Root, DNS64: mapping(t, tt.edit), Forward: resolvertest.Pool(t, b.Addr()), Hosts: resolvertest.Hosts(t, true, "192.0.2.9 by.hand"),
			Local: resolver.NewLocal(&config.Local{}), NSID: "x",
		}
		if got := told(newDesk(t, z).from(tt.client, resolver.UDP).ask(asked(tt.query))); got != tt.want {
			t.Errorf("%s: %s is %s\nwant %s", tt.name, tt.query, got, tt.want)
		}
	}
}

// TestDNS64Cached: both families are kept, what is made of them is made each time,
// without waiting, and counted.
func TestDNS64Cached(t *testing.T) {
	b := resolvertest.StartBackend(t, sixless)
	z := &resolver.Zone{Name: wire.Root, DNS64: mapping(t, func(*config.DNS64) {}), Forward: resolvertest.Pool(t, b.Addr()), Cache: resolvertest.Cache()}
	d := newDesk(t, z).from("[2001:db8::77]:53", resolver.UDP)
	packet, err := asked("alias.test. AAAA edns").Pack()
	if err != nil {
		t.Fatal(err)
	}
	const want = "NOERROR | alias.test. 50 CNAME v4.test., v4.test. 50 AAAA 64:ff9b::c000:201"
	for range 3 {
		if got := told(d.ask(asked("alias.test. AAAA edns"))); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if n := b.CountName("alias.test."); n != 2 {
		t.Errorf("the upstream was asked %d times", n)
	}
	if n := testing.AllocsPerRun(100, func() { d.serve(packet) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	made := z.Stats.Mapped()
	if diff := cmp.Diff(map[string]uint64{"NOERROR dns64": made}, repliesBy(z)); made != 104 || diff != "" {
		t.Errorf("%d made (-want +got):\n%s", made, diff)
	}
}

// TestDNS64ACL: it makes nothing of addresses that the client may not see.
func TestDNS64ACL(t *testing.T) {
	b := resolvertest.StartBackend(t, sixless)
	for rules, want := range map[string]string{
		"acl {\nblock type A\n}":  "REFUSED +15:15 (Blocked): ()",
		"acl {\nfilter type A\n}": "NOERROR +15:17 (Filtered): ()",
		"acl {\ndrop type A\n}":   "NOERROR |  | " + soa300,
		"acl {\ndrop\n}":          "nothing",
		// As CoreDNS has it: an error is as good as no address.
		"acl {\nblock type AAAA\n}": "NOERROR | v4.test. 600 AAAA 64:ff9b::c000:201, v4.test. 20 AAAA 64:ff9b::c000:202",
	} {
		z := &resolver.Zone{Name: wire.Root, DNS64: mapping(t, func(*config.DNS64) {}), Forward: resolvertest.Pool(t, b.Addr()), ACL: aclOf(t, rules), Cache: resolvertest.Cache()}
		d := newDesk(t, z).from("[2001:db8::77]:53", resolver.UDP)
		for i := range 2 {
			got := told(d.ask(asked("v4.test. AAAA edns")))
			if i == 1 { // one TTL for all
				want = strings.ReplaceAll(want, "600 AAAA", "20 AAAA")
			}
			if strings.ReplaceAll(got, " 20 AAAA", " 600 AAAA") != strings.ReplaceAll(want, " 20 AAAA", " 600 AAAA") {
				t.Errorf("%s: %s, want %s", rules, got, want)
			}
		}
	}
}

// TestDNS64Cluster: names of the cluster are mapped as well, and what an alias out of it
// leads to is.
func TestDNS64Cluster(t *testing.T) {
	b := resolvertest.StartBackend(t, sixless)
	z := &resolver.Zone{
		Name: wire.Root, Cluster: newPartial(t, "cluster.local"), External: &outside{name: "out.test.", outcome: kubernetes.Alias},
		DNS64: mapping(t, func(*config.DNS64) {}), Forward: resolvertest.Pool(t, b.Addr()),
	}
	d := newDesk(t, z).from("[2001:db8::77]:53", resolver.UDP)
	for query, want := range map[string]string{
		"web.shop.svc.cluster.local. AAAA": "NOERROR | web.shop.svc.cluster.local. 30 AAAA 64:ff9b::a60:9",
		"no.shop.svc.cluster.local. AAAA":  "NXDOMAIN aa |  | cluster.local. 30 SOA",
		"out.test. AAAA":                   "NOERROR | out.test. 5 CNAME lb.test., lb.test. 300 AAAA 64:ff9b::c000:206",
	} {
		if got := told(d.ask(asked(query))); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
}
