package differential

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// zoneText is a zone with each shape that a zone has: wildcards, empty non-terminals, delegations with
// addresses, DNAME, aliases inside and outside of the zone.
const zoneText = `
$TTL 300
@            SOA   ns1.zone.test. host.zone.test. 7 3600 600 86400 300
@            NS    ns1
@            NS    ns.elsewhere.test.
@            MX    10 mail
@            TXT   "the apex"
ns1          A     192.0.2.1
mail         A     192.0.2.2
mail         AAAA  2001:db8::2
www     60   A     192.0.2.3
www     60   A     192.0.2.4
Upper        TXT   "Kept As Written"
ptr          PTR   Host.Elsewhere.test.
esc\046aped  A     192.0.2.5
_x._tcp      SRV   1 2 53 mail
_x._tcp      SRV   2 2 53 ns1
_y._tcp      SRV   1 2 53 host.elsewhere.test.
svc          HTTPS 1 mail alpn=h2
two          MX    5 mail
two          MX    10 mail
*.wild       A     192.0.2.9
*.wild       MX    5 mail
host.wild    TXT   "host"
a.b.wild     TXT   "below an empty non-terminal"
x.*.odd      TXT   "an empty non-terminal of an asterisk"
*.alias      CNAME www
*.far        CNAME host.ext.test.
*.deep.wild  A     192.0.2.10
sub          NS    ns.sub
sub          NS    ns1
sub          NS    ns.elsewhere.test.
sub          DS    1 13 2 0000000000000000000000000000000000000000000000000000000000000000
ns.sub       A     192.0.2.11
ns.sub       AAAA  2001:db8::11
cut.b.wild   NS    ns.elsewhere.test.
old          DNAME new
old          TXT   "the owner itself"
a.new        A     192.0.2.6
*.w.new      A     192.0.2.7
outside      DNAME ext.test.
self         DNAME self
one          CNAME two-more
two-more     CNAME www
self1        CNAME self1
out          CNAME host.ext.test.
outgone      CNAME missing.ext.test.
outnodata    CNAME four.ext.test.
outfail      CNAME servfail.ext.test.
outrefused   CNAME refused.ext.test.
gone         CNAME nowhere
tosub        CNAME x.sub
towild       CNAME some.wild
toent        CNAME b.wild
toplain      CNAME _tcp
toold        CNAME a.old
toapex       CNAME @
nodata       CNAME ns1
loop1        CNAME loop2
loop2        CNAME loop1
big          TXT   "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
big          TXT   "1123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
big          TXT   "2123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
big          TXT   "3123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
big          TXT   "4123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
$ORIGIN gen.zone.test.
$GENERATE 1-3 h$ 300 A 192.0.2.$
`

// zoneNames are the names that are asked for, relative to the zone.
var zoneNames = []string{
	"", "www.", "WWW.", "upper.", "ptr.", `esc\.aped.`, "no.", "a.www.", "_tcp.", "_x._tcp.", "_y._tcp.", "svc.", "two.", "mail.", "h2.gen.", "gen.",
	"wild.", "x.wild.", "x.y.wild.", "*.wild.", "host.wild.", "x.host.wild.", "b.wild.", "x.b.wild.", "a.b.wild.", "odd.", "y.odd.", "*.odd.", "z.y.odd.",
	"x.alias.", "x.y.alias.", "x.far.", "deep.wild.", "x.deep.wild.", "sub.", "x.sub.", "ns.sub.", "cut.b.wild.", "x.cut.b.wild.",
	"old.", "a.old.", "b.old.", "x.w.old.", "w.old.", "host.outside.", "missing.outside.", "x.self.", "one.", "self1.", "out.", "outgone.", "outnodata.", "outfail.", "outrefused.",
	"gone.", "tosub.", "towild.", "toent.", "toplain.", "toold.", "toapex.", "nodata.", "loop1.", "big.",
}

// zoneQueries are the questions about the zone.
func zoneQueries() []query {
	var list []query
	for _, name := range zoneNames {
		name += "zone.test."
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeDNAME, dns.TypeNS, dns.TypeSOA, dns.TypeDS, dns.TypeHTTPS, dns.TypeANY} {
			list = append(list, query{name: name, qtype: kind})
		}
		list = append(list,
			query{name: name, qtype: dns.TypeA, ednsSize: ednsSize},
			query{name: name, qtype: dns.TypeA, ednsSize: ednsSize, do: true},
			query{name: name, qtype: dns.TypeTXT, tcp: true})
	}
	return append(list, query{name: "host.ext.test.", qtype: dns.TypeA}, query{name: "zone.test.", qtype: dns.TypeAXFR, tcp: true}, query{name: "zone.test.", qtype: dns.TypeIXFR})
}

// TestZoneFiles compares the answers from a zone file.
func TestZoneFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	path := filepath.Join(t.TempDir(), "db.zone.test")
	check.NoError(t, os.WriteFile(path, []byte(zoneText), 0o600))
	s := newPlainSite(t)
	primary := startPrimary(t)
	all, some := zoneQueries(), slices.DeleteFunc(zoneQueries(), func(q query) bool {
		return q.ednsSize > 0 || !slices.Contains([]uint16{dns.TypeA, dns.TypeNS, dns.TypeAXFR}, q.qtype)
	})
	for _, b := range []struct {
		ruleSet
		queries []query
	}{
		{ruleSet{name: "file", text: "file " + path + " zone.test"}, all},
		{ruleSet{name: "file that falls through", text: "file " + path + " zone.test {\nfallthrough\n}"}, all},
		{ruleSet{name: "file and cache", text: "cache 30\nfile " + path + " zone.test", caches: true}, all},
		{ruleSet{name: "auto", text: "auto zone.test {\ndirectory " + filepath.Dir(path) + "\n}"}, some},
		{ruleSet{name: "auto below root", text: "root " + filepath.Dir(filepath.Dir(path)) + "\nauto zone.test ext.test {\ndirectory " + filepath.Base(filepath.Dir(path)) + " ^db\\.(.*)\\.(.*)$ {1}.{2}\nreload 0\n}"}, some},
		{ruleSet{name: "secondary", text: "secondary zone.test {\ntransfer from " + primary + "\n}"}, some},
		{ruleSet{name: "secondary that falls through", text: "secondary zone.test {\ntransfer from 127.0.0.1:1 " + primary + "\nfallthrough\n}"}, some},
	} {
		t.Run(b.name, func(t *testing.T) {
			s.table = slices.Concat([]*knownDifference{knownSizes()}, knownZoneFiles(), knownMessages(), knownTTLs())
			if strings.HasPrefix(b.name, "auto") {
				s.table = append(s.table, knownAuto())
			}
			r := s.run(t, b.caches)
			r.coredns = s.serve(t, "coredns", b.corefile(), apiserver.Admin)
			r.agents = []agent{s.serveAgent(t, agent{name: agentProgram()}, b.corefile(), apiserver.Admin)}
			awaitZone(t, r.coredns)
			r.compare(b.queries)
			r.report()
		})
	}
}

// startPrimary starts a primary server of the zone, which allows transfers over TCP, and returns its address.
func startPrimary(t *testing.T) string {
	t.Helper()
	var records []dns.RR
	parser := dns.NewZoneParser(strings.NewReader(zoneText), "zone.test.", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records = append(records, rr)
	}
	check.NoError(t, parser.Err())
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		m.Authoritative, m.Compress = true, true
		if m.Answer = records[:1]; q.Question[0].Qtype == dns.TypeAXFR {
			m.Answer = slices.Concat(records, records[:1])
		}
		return m
	})).Addr().String()
}

// awaitZone waits until the server, which may be transferring the zone, has it.
func awaitZone(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	poll.Until(t, "the zone", func() bool {
		m, err := dns.Exchange(new(dns.Msg).SetQuestion("zone.test.", dns.TypeSOA), addr.String())
		return err == nil && m.Rcode == dns.RcodeSuccess
	})
}

// knownAuto is about auto.
func knownAuto() *knownDifference {
	return &knownDifference{
		reason: "AA is about the first name of the answer (RFC 1035, 4.1.1), an alias of the zone; CoreDNS's file sets it for an alias of a delegated name, and auto does not",
		expect: func(c comparison) (view, bool) {
			v := c.view
			v.Flags = strings.Replace(v.Flags, "qr", "qr aa", 1)
			return v, c.name == "tosub.zone.test." && hasType(v.Answer, "CNAME")
		},
	}
}

// knownZoneFiles are about file.
func knownZoneFiles() []*knownDifference {
	entReason := "a name that has names below it exists, so a wildcard is not for it (RFC 4592, 2.2.2 and 3.3.1)"
	return []*knownDifference{{
		reason: "ANY is answered with one RRset of the name (RFC 8482, 4.1); CoreDNS says that the name has no records",
		expect: func(c comparison) (view, bool) {
			if c.qtype != dns.TypeANY {
				return view{}, false
			}
			for _, kind := range []uint16{dns.TypeCNAME, dns.TypeA, dns.TypeNS, dns.TypePTR, dns.TypeMX, dns.TypeTXT, dns.TypeAAAA, dns.TypeSRV, dns.TypeDNAME, dns.TypeHTTPS} {
				v := c.answerForType(kind)
				if strings.Contains(v.Flags, "tc") || len(v.Answer) > 0 && strings.Contains(v.Flags, "aa") {
					return v, true
				}
			}
			return view{}, false
		},
	}, {
		reason: entReason,
		expect: func(c comparison) (view, bool) {
			plain := c.query // about a name that no wildcard could be for
			switch plain.name = "_tcp.zone.test."; c.name {
			case "toent.zone.test.":
				plain.name = "toplain.zone.test."
			case "b.wild.zone.test.", "deep.wild.zone.test.", "*.odd.zone.test.":
			default:
				return view{}, false
			}
			v := c.ask(plain).clone()
			v.Question = c.Question
			for i := range v.Answer {
				v.Answer[i].Owner, v.Answer[i].Data = c.name, "b.wild.zone.test."
			}
			return v, c.name != "toent.zone.test." || c.qtype != dns.TypeCNAME && c.qtype != dns.TypeANY
		},
	}, {
		reason: "NS records at the end of an alias are an answer as any other; CoreDNS follows the alias in another way, and gives the records twice",
		expect: func(c comparison) (view, bool) {
			v := c.view
			if c.name == "toapex.zone.test." {
				v.Authority, v.Additional = nil, c.ask(query{name: "zone.test.", qtype: dns.TypeNS}).Additional
			} else {
				v = c.answerForType(dns.TypeA)
			}
			return v, c.qtype == dns.TypeNS && slices.Contains([]string{"toapex.zone.test.", "loop1.zone.test.", "self1.zone.test."}, c.name)
		},
	}, {
		reason: "the denial of an alias' target has the SOA record (RFC 2308, 2.2), without which it is not cached; CoreDNS has it only if the target does not exist",
		expect: func(c comparison) (view, bool) {
			v := c.view
			v.Authority = c.ask(query{name: "www.zone.test.", qtype: dns.TypeTXT}).Authority
			other := slices.Contains([]string{"loop1.zone.test.", "tosub.zone.test.", "outrefused.zone.test."}, c.name)
			return v, !other && c.qtype != dns.TypeCNAME && c.qtype != dns.TypeANY && c.Rcode == "NOERROR" && strings.Contains(c.Flags, "aa") && hasType(v.Answer, "CNAME") && (c.qtype == dns.TypeDNAME || !hasType(v.Answer, dns.Type(c.qtype).String()))
		},
	}, {
		reason: "each alias of a circle is in the answer once (RFC 2181, 5); CoreDNS repeats them",
		expect: func(c comparison) (view, bool) {
			v := c.view.clone()
			v.Answer = slices.Compact(v.Answer)
			return v, c.name == "loop1.zone.test."
		},
	}, {
		reason: "a record about the name that was asked for has its letters, as of any other source",
		expect: func(c comparison) (view, bool) {
			v := c.view.clone()
			for i, r := range v.Answer {
				if strings.EqualFold(r.Owner, c.name) {
					v.Answer[i].Owner = c.name
				}
			}
			return v, true
		},
	}, {
		reason: "the records of a zone file don't come from the cache, so they have their own TTLs",
		expect: func(c comparison) (view, bool) {
			v := c.view.clone()
			for _, section := range [][]record{v.Answer, v.Authority, v.Additional} {
				for i, r := range section {
					switch {
					case !strings.HasSuffix(r.Owner, "zone.test."):
					case strings.EqualFold(r.Owner, "www.zone.test.") && r.Type == "A":
						section[i].TTL = 60
					default:
						section[i].TTL = 300
					}
				}
			}
			return v, c.caches
		},
	}}
}

// hasType reports whether one of list is of the type.
func hasType(list []record, kind string) bool {
	return slices.ContainsFunc(list, func(r record) bool { return r.Type == kind })
}
