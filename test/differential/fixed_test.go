package differential

import (
	"strings"

	"github.com/miekg/dns"
)

// allTypes are the types that every name is asked for.
var allTypes = []uint16{
	dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeTXT, dns.TypeMX,
	dns.TypeNS, dns.TypeSOA, dns.TypeANY, dns.TypeHTTPS, dns.TypeDS, dns.TypeCAA,
}

// ednsSize is the size that resolvers advertise since 2020: what fits an
// IPv6 packet of 1280 bytes.
const ednsSize = 1232

// fixedQueries are all types of each name that the world could own and of the
// odd ones below, and the same names in other ways.
func fixedQueries(w *world) []query {
	// TTLs are compared more strictly the less time has gone by, so the
	// answers that caches hold come first.
	qs := forwarded()
	names := append(w.owners(), oddNames()...)
	for _, name := range names {
		// A hundred endpoints that are alike are asked for in the main types.
		types := allTypes
		if strings.Contains(name, "crowd-") || strings.Contains(name, "10-244-11-") || strings.Contains(name, ".11.244.10.") {
			types = []uint16{dns.TypeA, dns.TypePTR}
		}
		for _, kind := range types {
			qs = append(qs, query{name: name, qtype: kind})
		}
	}
	qs = append(qs, variations()...)
	qs = append(qs, truncated()...)
	return append(qs, malformed()...)
}

// oddNames are names that no object owns, or owns in an unusual way.
func oddNames() []string {
	below := []string{
		"", "svc.", "pod.", "dns-version.", "ns.dns.", "dns.", "DNS-Version.", "x.dns-version.",
		"nothing.", "x.y.", "gone.svc.", "gone.pod.", "gone.gone.svc.", "gone.plain.svc.",
		"kubernetes.default.svc.", "_https._tcp.kubernetes.default.svc.", "default.svc.", "kube-system.svc.", "kube-system.pod.",
		"deleted.plain.svc.", "deleted.svc.", "service.deleted.svc.", "1-2-3-4.deleted.pod.",

		// Ports and protocols.
		"_tcp.one.plain.svc.", "_udp.one.plain.svc.", "_http.one.plain.svc.", "_tcp.set.headless.svc.", "_tcp.outside.external.svc.",
		"_http._udp.one.plain.svc.", "_HTTP._TCP.one.plain.svc.", "http.tcp.one.plain.svc.", "_http.tcp.one.plain.svc.", "http._tcp.one.plain.svc.",
		"_https._tcp.one.plain.svc.", "_._tcp.one.plain.svc.", "__http._tcp.one.plain.svc.", "_http._.one.plain.svc.", "_._.one.plain.svc.",
		"_http._tcp.gone.plain.svc.", "_http._tcp.unready.headless.svc.", "_http._tcp.set.headless.pod.",
		"_sig._sctp.sctp.plain.svc.", "_sig._tcp.sctp.plain.svc.", "_dns._udp.dual.plain.svc.", "_dns._tcp.dual.plain.svc.",
		"_http._tcp.outside.external.svc.", "_http._tcp.withports.external.svc.", "_http._tcp.set-0.set.headless.svc.",
		"*.one.plain.svc.", "*.plain.svc.", "any.plain.svc.", "_any._tcp.one.plain.svc.", "_*._*.one.plain.svc.", "*._tcp.one.plain.svc.",

		// Endpoints.
		"set-0.set.headless.svc.", "SET-0.Set.Headless.SVC.", "set-9.set.headless.svc.", "x.set-0.set.headless.svc.", "x.y.set-0.set.headless.svc.",
		"10-244-2-1.set.headless.svc.", "10-244-2-3.set.headless.svc.", "fd00-244-3--.bare.headless.svc.", "fd00-244-3--0.bare.headless.svc.",
		"host.backed.plain.svc.", "10-244-1-1.backed.plain.svc.", "10-244-1-2.backed.plain.svc.", "10-96-1-8.backed.plain.svc.", "10-96-1-1.one.plain.svc.",
		"x.outside.external.svc.", "db.several.headless.svc.", "x.db.several.headless.svc.", "10-244-18-1.orphaned.headless.svc.", "orphaned.headless.svc.",

		// Pods.
		"10-1-2-3.plain.pod.", "10-1-2-3.gone.pod.", "10-1-2.plain.pod.", "10-1-2-300.plain.pod.", "010-1-2-3.plain.pod.", "10--1-2-3.plain.pod.",
		"fd00-1--2.plain.pod.", "fd00--.plain.pod.", "--1.plain.pod.", "--.plain.pod.", "fd00-0-0-0-0-0-0-1.plain.pod.", "FD00--A.plain.pod.",
		"0-0-0-0.plain.pod.", "255-255-255-255.plain.pod.", "abc.plain.pod.", "1.plain.pod.", "x.10-1-2-3.plain.pod.", "_tcp.10-1-2-3.plain.pod.",
		"x.y.10-1-2-3.plain.pod.", "__ffff-1.2.3.4.plain.pod.", "--ffff-1-2-3-4.plain.pod.", "--ffff-102-304.plain.pod.", "10.1.2.3.plain.pod.",
		"10-1-2-3.Plain.Pod.",

		// Depth and letters.
		"a.b.c.d.e.one.plain.svc.", "one.plain.svc.svc.", "one.plain.", "plain.svc.svc.", "one.plain.service.", "svc.svc.", "pod.svc.", "svc.pod.", "pod.pod.",
		"ONE.plain.svc.", "one.PLAIN.svc.", "one.plain.SVC.", `o\110e.plain.svc.`, `one\.plain.svc.`, `\000.plain.svc.`, `a\032b.plain.svc.`,
		"cluster.local.", "one.plain.svc.cluster.local.", strings.Repeat("x", 63) + ".plain.svc.",
	}
	var names []string
	for _, name := range below {
		names = append(names, name+zone)
	}
	return append(names,
		"ONE.PLAIN.SVC.CLUSTER.LOCAL.", "one.plain.svc.Cluster.Local.", "Cluster.LOCAL.",
		"local.", "xcluster.local.", "cluster.local.ext.test.", "one.plain.svc.cluster.local.ext.test.", "one.plain.svc.", "one.", ".",
		"in-addr.arpa.", "ip6.arpa.", "svc.in-addr.arpa.", "pod.ip6.arpa.", "x.svc.ip6.arpa.", "10.in-addr.arpa.", "96.10.in-addr.arpa.", "1.1.96.10.IN-ADDR.ARPA.", "1.1.1.96.10.in-addr.arpa.",
		"x.1.1.96.10.in-addr.arpa.", "01.1.96.10.in-addr.arpa.", "256.1.96.10.in-addr.arpa.", "0/25.1.96.10.in-addr.arpa.", "250.9.96.10.in-addr.arpa.",
		"1.2.0.192.in-addr.arpa.", "2.2.0.192.in-addr.arpa.", "arpa.", "0.0.d.f.ip6.arpa.",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.",
		"x."+reverse("fd00:10:96::12"), "0."+reverse("fd00:10:96::12"), strings.ToUpper(reverse("fd00:10:96::12")),
		"g.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.",
		"host.ext.test.", "HOST.ext.test.",
	)
}

// someNames have each kind of answer.
var someNames = []string{
	"one.plain.svc." + zone, "gone.plain.svc." + zone, "set.headless.svc." + zone, "nothing.headless.svc." + zone,
	"outside.external.svc." + zone, zone, "1.1.96.10.in-addr.arpa.", "host.ext.test.", "alias2.ext.test.", "missing.ext.test.", "neg.test.", "ad.ext.test.",
}

// variations asks some names in many ways.
func variations() []query {
	forms := []query{
		{ednsSize: ednsSize},
		{ednsSize: 512},
		{ednsSize: 100},
		{ednsSize: 4096, do: true},
		{ednsSize: 65535},
		{ednsSize: ednsSize, version: 1},
		{ednsSize: ednsSize, options: []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}}},
		{ednsSize: ednsSize, options: []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}},
		{ednsSize: ednsSize, options: []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 16)}}},
		{ednsSize: ednsSize, options: []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")}}},
		{tcp: true},
		{tcp: true, ednsSize: ednsSize},
		{norec: true},
		{cd: true},
		{ad: true},
		{ad: true, cd: true, ednsSize: ednsSize, do: true},
		{qclass: dns.ClassCHAOS},
		{qclass: dns.ClassHESIOD},
		{qclass: dns.ClassNONE},
		{qclass: dns.ClassANY},
	}
	var qs []query
	for _, name := range someNames {
		for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeTXT} {
			for _, q := range forms {
				q.name, q.qtype = name, kind
				qs = append(qs, q)
			}
		}
		for _, kind := range []uint16{dns.TypeAXFR, dns.TypeIXFR} {
			qs = append(qs, query{name: name, qtype: kind, tcp: true}, query{name: name, qtype: kind})
		}
	}
	for _, kind := range []uint16{0, dns.TypeOPT, dns.TypeTSIG, dns.TypeTKEY, dns.TypeMAILA, dns.TypeMAILB, dns.TypeNULL, 65280, 65535} {
		qs = append(qs, query{name: someNames[0], qtype: kind}, query{name: "gone.plain.svc." + zone, qtype: kind}, query{name: "host.ext.test.", qtype: kind})
	}
	for _, name := range []string{"version.bind.", "id.server.", "hostname.bind."} {
		qs = append(qs, query{name: name, qtype: dns.TypeTXT, qclass: dns.ClassCHAOS})
	}
	return qs
}

// truncated asks for answers that are too big in one way or another.
func truncated() []query {
	var qs []query
	for _, ask := range []query{
		{name: "crowd.headless.svc." + zone, qtype: dns.TypeA},
		{name: "crowd.headless.svc." + zone, qtype: dns.TypeSRV},
		{name: "_http._tcp.crowd.headless.svc." + zone, qtype: dns.TypeSRV},
		{name: "group.headless.svc." + zone, qtype: dns.TypeA},
		{name: "_http._tcp.group.headless.svc." + zone, qtype: dns.TypeSRV},
		{name: "big.ext.test.", qtype: dns.TypeTXT},
		{name: "middle.ext.test.", qtype: dns.TypeTXT},
	} {
		for _, size := range []uint16{0, 512, ednsSize, 4096, 65535} {
			ask.ednsSize = size
			ask.tcp = false
			qs = append(qs, ask)
			ask.tcp = true
			qs = append(qs, ask)
		}
	}
	return qs
}

// forwarded asks for what only the upstream knows.
func forwarded() []query {
	var qs []query
	for _, name := range []string{
		"ext.test", "host.ext.test", "four.ext.test", "six.ext.test", "zero.ext.test", "short.ext.test", "long.ext.test", "mixed.ext.test",
		"case.ext.test", "CASE.EXT.TEST", "alias.ext.test", "alias2.ext.test", "dangling.ext.test", "toservfail.ext.test", "tocluster.ext.test",
		"_dns._udp.ext.test", "missing.ext.test", "Missing.Ext.Test", "a.b.c.missing.ext.test", "neg.test", "x.neg.test", "a.any.test", "B.any.test",
		"servfail.ext.test", "refused.ext.test", "formerr.ext.test", "notimp.ext.test", "notauth.ext.test", "ad.ext.test", "ede.ext.test", "nowhere",
	} {
		for _, kind := range append(allTypes, dns.TypeRRSIG, dns.TypeDNSKEY, uint16(65280)) {
			qs = append(qs, query{name: name + ".", qtype: kind})
		}
		for _, kind := range []uint16{dns.TypeA, dns.TypeTXT} {
			qs = append(qs,
				query{name: name + ".", qtype: kind, ednsSize: ednsSize},
				query{name: name + ".", qtype: kind, ednsSize: ednsSize, do: true},
				query{name: name + ".", qtype: kind, cd: true},
				query{name: name + ".", qtype: kind, tcp: true})
		}
	}
	return qs
}

// malformed asks in ways that a resolver doesn't.
func malformed() []query {
	base := func(change func(*dns.Msg)) []byte {
		m := new(dns.Msg)
		m.SetQuestion(someNames[0], dns.TypeA)
		change(m)
		wire, err := m.Pack()
		if err != nil {
			// The messages are constants; one that can't be packed is a
			// mistake in this file.
			panic(err)
		}
		return wire
	}
	opcode := func(code int) func(*dns.Msg) { return func(m *dns.Msg) { m.Opcode = code } }
	both := func(note string, wire []byte, dropped bool) []query {
		return []query{{note: note, wire: wire, dropped: dropped}, {note: note, wire: wire, tcp: true, dropped: dropped}}
	}
	plain := base(func(*dns.Msg) {})
	var qs []query
	for _, group := range [][]query{
		both("opcode notify", base(opcode(dns.OpcodeNotify)), true),
		both("opcode update", base(opcode(dns.OpcodeUpdate)), false),
		both("opcode status", base(opcode(dns.OpcodeStatus)), false),
		both("opcode iquery", base(opcode(dns.OpcodeIQuery)), false),
		both("opcode 15", base(opcode(15)), false),
		both("response bit", base(func(m *dns.Msg) { m.Response = true }), true),
		both("no question", base(func(m *dns.Msg) { m.Question = nil }), true),
		both("two questions", base(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), true),
		both("an answer", base(func(m *dns.Msg) { m.Answer = []dns.RR{&dns.A{Hdr: rrHeader(dns.TypeA), A: []byte{1, 2, 3, 4}}} }), true),
		both("two answers", base(func(m *dns.Msg) {
			m.Answer = []dns.RR{&dns.A{Hdr: rrHeader(dns.TypeA), A: []byte{1, 2, 3, 4}}, &dns.A{Hdr: rrHeader(dns.TypeA), A: []byte{1, 2, 3, 5}}}
		}), true),
		both("an authority", base(func(m *dns.Msg) {
			m.Ns = []dns.RR{&dns.SOA{Hdr: rrHeader(dns.TypeSOA), Ns: ".", Mbox: "."}}
		}), true),
		both("three additionals", base(func(m *dns.Msg) {
			for i := range byte(3) {
				m.Extra = append(m.Extra, &dns.A{Hdr: rrHeader(dns.TypeA), A: []byte{1, 2, 3, i}})
			}
		}), true),
		both("two OPT", base(func(m *dns.Msg) { m.SetEdns0(ednsSize, false).SetEdns0(ednsSize, false) }), true),
		both("option without its end", cutOption(base(func(m *dns.Msg) {
			m.SetEdns0(ednsSize, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("data")}}
		})), true),
		both("flags aa tc ra z", base(func(m *dns.Msg) {
			m.Authoritative, m.Truncated, m.RecursionAvailable, m.Zero = true, true, true, true
		}), true),
		both("rcode in the query", base(func(m *dns.Msg) { m.Rcode = dns.RcodeRefused }), true),
		both("cut off in the header", plain[:8], true),
		both("header alone", plain[:12], true),
		both("cut off in the name", plain[:20], true),
		both("cut off after the type", plain[:len(plain)-2], true),
		both("bytes after the end", append(append([]byte(nil), plain...), 1, 2, 3, 4), true),
		both("pointer to itself", append(append([]byte(nil), plain[:12]...), 0xc0, 12, 0, 1, 0, 1), true),
		both("label type 01", append(append([]byte(nil), plain[:12]...), 0x41, 'x', 0, 0, 1, 0, 1), true),
		both("name of 256 bytes", append(append(append([]byte(nil), plain[:12]...), longName()...), 0, 1, 0, 1), true),
	} {
		qs = append(qs, group...)
	}
	return qs
}

func rrHeader(kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: "x.ext.test.", Rrtype: kind, Class: dns.ClassINET, Ttl: 1}
}

// longName is a name in wire form that is one byte too long.
func longName() []byte {
	var name []byte
	for range 126 {
		name = append(name, 1, 'x')
	}
	return append(name, 2, 'x', 'x', 0)
}

// cutOption makes the option at the end of packet one byte longer than the OPT record.
func cutOption(packet []byte) []byte {
	packet[len(packet)-5]++ // the last byte of its length, before four bytes of data
	return packet
}
