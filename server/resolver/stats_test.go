// This test counts a request that no server has run.

package resolver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestMetricLabels holds that the types and rcodes that are labels of metrics are those of CoreDNS.
func TestMetricLabels(t *testing.T) {
	types := map[string]uint64{"other": uint64(len(dns.TypeToString) - 19)}
	for _, qtype := range []uint16{
		dns.TypeA, dns.TypeAAAA, dns.TypeANY, dns.TypeAXFR, dns.TypeCNAME, dns.TypeDNSKEY, dns.TypeDS, dns.TypeHTTPS, dns.TypeIXFR, dns.TypeMX,
		dns.TypeNS, dns.TypeNSEC, dns.TypeNSEC3, dns.TypePTR, dns.TypeRRSIG, dns.TypeSOA, dns.TypeSRV, dns.TypeSVCB, dns.TypeTXT,
	} {
		types[dns.TypeToString[qtype]] = 1
	}
	rcodes := map[string]uint64{"NOERROR": uint64(len(dns.TypeToString)), "NOTZONE": 1, "DSOTYPENI": 1, "RCODE15": 1, "BADSIG": 1, "BADCOOKIE": 1}

	s := NewStats()
	for qtype := range dns.TypeToString {
		x, msg := askedOf(t, func(q *dns.Msg) { q.Question[0].Qtype = qtype }, address)
		s.count(x, len(msg))
	}
	gotTypes := make(map[string]uint64)
	s.EachRequest(func(_, _, qtype string, n uint64) { gotTypes[qtype] += n })
	if d := cmp.Diff(types, gotTypes); d != "" {
		t.Errorf("types (-want +got):\n%s", d)
	}
	for _, rcode := range []wire.Rcode{dns.RcodeNotZone, 11, 15, dns.RcodeBadVers, dns.RcodeBadCookie} {
		x, msg := askedOf(t, func(q *dns.Msg) { q.SetEdns0(1232, false) }, func(r *wire.Reply) { r.Fail(rcode) })
		s.count(x, len(msg))
	}
	gotRcodes := make(map[string]uint64)
	s.EachResponse(func(rcode, _ string, n uint64) { gotRcodes[rcode] += n })
	if d := cmp.Diff(rcodes, gotRcodes); d != "" {
		t.Errorf("rcodes (-want +got):\n%s", d)
	}
}
