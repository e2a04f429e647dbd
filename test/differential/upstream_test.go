package differential

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// upstreamScript is what the upstream knows. A name that has records of other types
// is NODATA, any other name is NXDOMAIN, both with the SOA of the longest
// zone that holds the name.
const upstreamScript = `
.                       86400 SOA   ns.root.test. host.root.test. 1 1800 900 604800 86400
.                       86400 NS    ns.root.test.
ext.test.               300   SOA   ns.ext.test. host.ext.test. 1 1800 900 604800 60
ext.test.               3600  NS    ns.ext.test.
ext.test.               3600  MX    10 mail.ext.test.
ext.test.               3600  MX    20 mail2.ext.test.
ns.ext.test.            3600  A     192.0.2.53
mail.ext.test.          3600  A     192.0.2.25
host.ext.test.          3600  A     192.0.2.1
host.ext.test.          3600  A     192.0.2.2
host.ext.test.          3600  AAAA  2001:db8::1
four.ext.test.          20    A     192.0.2.4
six.ext.test.           20    AAAA  2001:db8::6
zero.ext.test.          0     A     192.0.2.10
short.ext.test.         2     A     192.0.2.11
long.ext.test.          604800 A    192.0.2.12
mixed.ext.test.         10    A     192.0.2.13
mixed.ext.test.         400   A     192.0.2.14
Case.Ext.Test.          300   TXT   "Kept As Written"
alias.ext.test.         300   CNAME host.ext.test.
alias2.ext.test.        100   CNAME alias.ext.test.
dangling.ext.test.      300   CNAME missing.ext.test.
toservfail.ext.test.    300   CNAME servfail.ext.test.
tocluster.ext.test.     300   CNAME one.plain.svc.cluster.local.
_dns._udp.ext.test.     300   SRV   1 2 53 ns.ext.test.
host.ext.test.          300   TXT   "one" "two"
host.ext.test.          300   CAA   0 issue "ca.ext.test"
host.ext.test.          300   HTTPS 1 . alpn="h2,h3" ipv4hint="192.0.2.1"
host.ext.test.          300   TYPE65280 \# 4 0A000001
host.ext.test.          300   RRSIG A 13 3 3600 20300101000000 20200101000000 1 ext.test. aGVsbG8=
ad.ext.test.            300   A     192.0.2.20
ede.ext.test.           300   A     192.0.2.21
neg.test.               3600  SOA   ns.neg.test. host.neg.test. 1 1800 900 604800 5
1.2.0.192.in-addr.arpa. 300   PTR   host.ext.test.
1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. 300 PTR host.ext.test.
*.any.test.             300   A     192.0.2.99
_dns.resolver.arpa.     300   SVCB  1 dns.ext.test. alpn="dot" ipv4hint="192.0.2.66"
`

// rcodes are the names that the upstream answers with an error alone.
var rcodes = map[string]int{
	"servfail.ext.test.": dns.RcodeServerFailure,
	"refused.ext.test.":  dns.RcodeRefused,
	"formerr.ext.test.":  dns.RcodeFormatError,
	"notimp.ext.test.":   dns.RcodeNotImplemented,
	"notauth.ext.test.":  dns.RcodeNotAuth,
}

// upstream is a resolver that answers from a script.
type upstream struct {
	names map[string][]dns.RR
}

// startUpstream starts the upstream on a loopback port, UDP and TCP, until
// the test ends.
func startUpstream(t *testing.T) netip.AddrPort {
	t.Helper()
	u, err := newUpstream()
	check.NoError(t, err)
	return fakedns.Start(t, fakedns.Answers(u.reply)).Addr()
}

func newUpstream() (*upstream, error) {
	u := &upstream{names: map[string][]dns.RR{}}
	p := dns.NewZoneParser(strings.NewReader(upstreamScript), ".", "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		name := dns.CanonicalName(rr.Header().Name)
		u.names[name] = append(u.names[name], rr)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	// A reply that needs TCP with any usual EDNS size, and one that needs
	// more than the 512 bytes of a query without EDNS.
	u.fill("big.ext.test.", 40)
	u.fill("middle.ext.test.", 5)
	return u, nil
}

// fill gives the name n strings of 120 bytes.
func (u *upstream) fill(name string, n int) {
	for i := range n {
		u.names[name] = append(u.names[name], &dns.TXT{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 300},
			Txt: []string{fmt.Sprintf("%03d%s", i, strings.Repeat("x", 117))},
		})
	}
}

// reply answers a query.
func (u *upstream) reply(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	name := dns.CanonicalName(q.Question[0].Name)
	u.resolve(m, name, q.Question[0].Qtype)
	if name == "ad.ext.test." {
		m.AuthenticatedData = true
	}
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(4096, opt.Do())
		if name == "ede.ext.test." {
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeStaleAnswer, ExtraText: "old"})
		}
	}
	return m
}

// resolve fills the reply, following CNAMEs.
func (u *upstream) resolve(m *dns.Msg, name string, kind uint16) {
	owner := m.Question[0].Name
	for {
		if rcode, ok := rcodes[name]; ok {
			m.Rcode = rcode
			return
		}
		rrs, ok := u.names[name]
		if !ok {
			rrs, ok = u.names["*."+parent(name)]
		}
		if !ok {
			m.Rcode = dns.RcodeNameError
			m.Ns = u.authority(name)
			return
		}
		found, target := pickRecords(rrs, kind, owner)
		m.Answer = append(m.Answer, found...)
		if target == "" {
			if len(found) == 0 {
				m.Ns = u.authority(name)
			}
			return
		}
		owner, name = target, dns.CanonicalName(target)
	}
}

// pickRecords copies the records of the type with the owner as it was asked for;
// where there is a CNAME instead, the target is the name to go on with.
func pickRecords(rrs []dns.RR, kind uint16, owner string) (found []dns.RR, target string) {
	for _, rr := range rrs {
		alias, isAlias := rr.(*dns.CNAME)
		if rr.Header().Rrtype != kind && !isAlias {
			continue
		}
		rr = dns.Copy(rr)
		rr.Header().Name = owner
		found = append(found, rr)
		if isAlias && kind != dns.TypeCNAME {
			target = alias.Target
		}
	}
	return found, target
}

// authority returns the SOA of the longest zone that holds the name.
func (u *upstream) authority(name string) []dns.RR {
	for {
		for _, rr := range u.names[name] {
			if rr.Header().Rrtype == dns.TypeSOA {
				return []dns.RR{rr}
			}
		}
		name = parent(name)
	}
}

func parent(name string) string {
	next, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[next:]
}
