package wire

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// BenchmarkParseResponse reads and packs replies as upstreams send them.
func BenchmarkParseResponse(b *testing.B) {
	const name, writtenOut = "www.shop.example.com.", "an address, its name written out"
	for _, tt := range []struct {
		name  string
		qtype uint16
		rrs   func() []string
	}{
		{"an address", dns.TypeA, func() []string { return []string{name + " 60 IN A 192.0.2.1"} }},
		{writtenOut, dns.TypeA, func() []string { return []string{name + " 60 IN A 192.0.2.1"} }},
		{"aliases and addresses", dns.TypeA, func() (rrs []string) {
			rrs = []string{name + " 60 IN CNAME www.shop.cdn.example.net.", "www.shop.cdn.example.net. 60 IN CNAME edge7.cdn.example.net."}
			for i := range 8 {
				rrs = append(rrs, fmt.Sprintf("edge7.cdn.example.net. 60 IN A 192.0.2.%d", i))
			}
			return rrs
		}},
		{"120 servers", dns.TypeSRV, func() (rrs []string) {
			for i := range 120 {
				rrs = append(rrs, fmt.Sprintf("%s 60 IN SRV 0 1 80 h%d.dc1.example.com.", name, i))
			}
			return rrs
		}},
		{"4,000 addresses", dns.TypeA, func() (rrs []string) {
			for i := range 4000 {
				rrs = append(rrs, fmt.Sprintf("%s 60 IN A 10.0.%d.%d", name, i>>8, i&255))
			}
			return rrs
		}},
		{"2,500 names", dns.TypePTR, func() (rrs []string) {
			for i := range 2500 {
				rrs = append(rrs, fmt.Sprintf("%s 60 IN PTR h%d.dc1.example.com.", name, i))
			}
			return rrs
		}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			q := stubQuery(b, name, tt.qtype)
			m := new(dns.Msg).SetReply(unpacked(b, q.Packet))
			m.Compress = tt.name != writtenOut
			for _, line := range tt.rrs() {
				rr, err := dns.NewRR(line)
				noError(b, err)
				m.Answer = append(m.Answer, rr)
			}
			msg := packed(b, m)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseResponse(msg, q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
