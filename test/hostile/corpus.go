package main

import (
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"
)

// corpus gives packed queries as the clients of a cluster send them: each name of
// corpusNames with a few types, and with each of corpusShapes in turn.
func corpus() ([][]byte, error) {
	var all [][]byte
	for i, name := range corpusNames {
		for j, shape := range corpusShapes {
			m := new(dns.Msg)
			m.SetQuestion(name, corpusTypes[(i+j)%len(corpusTypes)])
			shape(m)
			packet, err := m.Pack()
			if err != nil {
				return nil, fmt.Errorf("packing a query for %s: %w", name, err)
			}
			all = append(all, packet)
		}
	}
	return all, nil
}

var corpusTypes = []uint16{
	dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeHTTPS, dns.TypeANY, dns.TypeTXT, dns.TypeMX,
	dns.TypeSOA, dns.TypeNS, dns.TypeDS, dns.TypeCNAME, dns.TypeAXFR, 65280,
}

// corpusNames have an answer from each step of the path, and all shapes that names
// come in.
var corpusNames = []string{
	handWrittenNames, clusterIP, headless, port, aliasInside, aliasOutside, aliasBroken, reverse, "nobody.shop.svc.cluster.local.",
	strings.ToUpper(clusterIP), "wEb.ShOp.SvC.cLuStEr.LoCaL.", "10-1-2-3.shop.pod.cluster.local.", "cluster.local.", ".",
	// What a resolver's search list makes of a name, and what ndots:5 sends on.
	"cached." + goodZone + "shop.svc.cluster.local.", "cached." + goodZone + "svc.cluster.local.", "cached." + goodZone,
	"big." + goodZone, "nobody." + goodZone, "some." + brokenZone, "others." + brokenZone, "Mixed." + brokenZone,
	"xn--bcher-kva.test.", `b\195\188cher.test.`, `a\.b\000\255.test.`, "_dns._udp.test.", "*.test.",
	label63 + ".test.", strings.Repeat(label63+".", 3) + strings.Repeat("a", 61) + ".", strings.Repeat("a.", 127),
	strings.Repeat("0.", 32) + "ip6.arpa.", "1.0.0.127.in-addr.arpa.", "version.bind.",
}

var label63 = strings.Repeat("x", 63)

// corpusShapes are the flags, classes and additional records that queries come with.
var corpusShapes = []func(*dns.Msg){
	func(*dns.Msg) {},
	func(m *dns.Msg) { m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = false, true, true },
	func(m *dns.Msg) { m.SetEdns0(512, false) },
	func(m *dns.Msg) { m.SetEdns0(1232, true) },
	func(m *dns.Msg) { m.SetEdns0(65535, false) },
	func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{
			&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
			&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)},
		}
	},
	func(m *dns.Msg) {
		m.SetEdns0(4096, true)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}, &dns.EDNS0_PADDING{Padding: make([]byte, 200)}}
	},
	func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) },
	func(m *dns.Msg) { m.SetEdns0(1232, false).SetTsig("key.test.", dns.HmacSHA256, 300, 1) },
	func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
}
