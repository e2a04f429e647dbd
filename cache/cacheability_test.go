// Inside the package: the helpers are those of cache_test.go, which need internals.

package cache

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestCacheability checks what is cached, in which list, and for how long.
func TestCacheability(t *testing.T) {
	const www = "www.example."
	tests := map[string]struct {
		qtype   uint16
		message message
		tune    func(*config.Cache)
		shape   func(*dns.Msg)
		want    Kinds  // entries after it
		ttl     uint32 // of every record; 0 with no records to see
	}{
		"an answer lives its TTL": {
			message: message{answer: []string{addr}}, want: Kinds{Success: 1}, ttl: 300},
		"the least TTL counts, in any section": {
			message: message{answer: []string{addr}, authority: []string{"example. 60 IN NS ns.example."},
				additional: []string{"ns.example. 40 IN A 192.0.2.53"}},
			want: Kinds{Success: 1}, ttl: 40},
		"an OPT record has no TTL": {
			message: message{answer: []string{addr}, additional: nil}, shape: edns, want: Kinds{Success: 1}, ttl: 300},
		"an answer above the cap": {
			message: message{answer: []string{"www.example. 86400 IN A 192.0.2.1"}}, want: Kinds{Success: 1}, ttl: 3600},
		"an answer below the floor": {
			message: message{answer: []string{"www.example. 1 IN A 192.0.2.1"}}, want: Kinds{Success: 1}, ttl: 5},
		"TTL 0 is raised to the floor": {
			message: message{answer: []string{"www.example. 0 IN A 192.0.2.1"}}, want: Kinds{Success: 1}, ttl: 5},
		"TTL 0 without a floor is not kept": {
			tune:    func(c *config.Cache) { c.Success.MinTTL = 0 },
			message: message{answer: []string{"www.example. 0 IN A 192.0.2.1"}}},
		"a floor above the cap yields": {
			tune:    func(c *config.Cache) { c.Success.MaxTTL = 3 * time.Second },
			message: message{answer: []string{addr}}, want: Kinds{Success: 1}, ttl: 3},
		"an alias with its target": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example.", "web.example. 20 IN A 192.0.2.1"}},
			want:    Kinds{Success: 1}, ttl: 20},
		"an alias asked for by type": {
			qtype: dns.TypeCNAME, message: message{answer: []string{"www.example. 30 IN CNAME web.example."}},
			want: Kinds{Success: 1}, ttl: 30},
		"an alias that leads nowhere": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example."}}, ttl: 30},
		"an alias that leads nowhere, with SOA": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example."}, authority: soaRecord(900, 600)},
			want:    Kinds{Denial: 1}, ttl: 30},
		"an alias with its target twice": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example.", "www.example. 30 IN CNAME WEB.example.", "web.example. 20 IN A 192.0.2.1"}},
			want:    Kinds{Success: 1}, ttl: 20},
		"an alias with two targets": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example.", "www.example. 30 IN CNAME other.example.", "web.example. 30 IN A 192.0.2.1"}},
			ttl:     30},
		"an alias with two targets, the wrong one first": {
			message: message{answer: []string{"www.example. 30 IN CNAME other.example.", "www.example. 30 IN CNAME web.example.", "web.example. 30 IN A 192.0.2.1"}},
			ttl:     30},
		"an alias with two targets, with SOA": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example.", "www.example. 30 IN CNAME other.example."}, authority: soaRecord(900, 600)},
			ttl:     30},
		"an alias with two targets further on": {
			message: message{answer: []string{"www.example. 30 IN CNAME a.example.", "a.example. 30 IN CNAME b.example.", "a.example. 30 IN CNAME c.example.", "b.example. 30 IN A 192.0.2.1"}},
			ttl:     30},
		"two targets of an alias that nobody asked for": {
			message: message{answer: []string{addr, "a.example. 300 IN CNAME b.example.", "a.example. 300 IN CNAME c.example."}},
			want:    Kinds{Success: 1}, ttl: 300},
		"two targets asked for by type": {
			qtype: dns.TypeCNAME, message: message{answer: []string{"www.example. 30 IN CNAME a.example.", "www.example. 30 IN CNAME b.example."}}, ttl: 30},
		"a circle of aliases": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example.", "web.example. 30 IN CNAME www.example."}}, ttl: 30},
		"a circle of aliases, with SOA": {
			message: message{answer: []string{"www.example. 30 IN CNAME web.example.", "web.example. 30 IN CNAME www.example."}, authority: soaRecord(900, 600)},
			ttl:     30},
		"a circle of aliases beside an address": {
			message: message{answer: []string{"www.example. 30 IN CNAME www.example.", "www.example. 30 IN A 192.0.2.1"}}, ttl: 30},
		"an address before a circle of aliases": {
			message: message{answer: []string{"www.example. 30 IN A 192.0.2.1", "www.example. 30 IN CNAME web.example.", "web.example. 30 IN CNAME web.example."}}, ttl: 30},
		"an address beside an alias that leads nowhere": {
			message: message{answer: []string{"www.example. 30 IN A 192.0.2.1", "www.example. 30 IN CNAME web.example."}}, ttl: 30},
		"an address beside an alias that leads nowhere, with SOA": {
			message: message{answer: []string{"www.example. 30 IN A 192.0.2.1", "www.example. 30 IN CNAME web.example."}, authority: soaRecord(900, 600)}, ttl: 30},
		"an address beside an alias that leads to one": {
			message: message{answer: []string{"www.example. 30 IN A 192.0.2.1", "www.example. 30 IN CNAME web.example.", "web.example. 30 IN A 192.0.2.1"}},
			want:    Kinds{Success: 1}, ttl: 30},
		"NXDOMAIN with an answer": {
			message: message{rcode: dns.RcodeNameError, answer: []string{"www.example. 30 IN A 192.0.2.1"}, authority: soaRecord(900, 600)}, ttl: 30},
		"NXDOMAIN behind an alias with two targets": {
			message: message{rcode: dns.RcodeNameError, answer: []string{"www.example. 30 IN CNAME x.example.", "www.example. 30 IN CNAME y.example."}, authority: soaRecord(900, 600)},
			ttl:     30},
		"records of another name": {
			message: message{answer: []string{"web.example. 30 IN A 192.0.2.1"}}, ttl: 30},
		"NXDOMAIN lives the SOA's TTL": {
			message: message{rcode: dns.RcodeNameError, authority: soaRecord(60, 900)}, want: Kinds{Denial: 1}, ttl: 60},
		"NXDOMAIN lives the SOA's MINIMUM": {
			message: message{rcode: dns.RcodeNameError, authority: soaRecord(900, 60)}, want: Kinds{Denial: 1}, ttl: 60},
		"NXDOMAIN above the cap": {
			message: message{rcode: dns.RcodeNameError, authority: soaRecord(86400, 86400)}, want: Kinds{Denial: 1}, ttl: 1800},
		"NXDOMAIN below the floor": {
			message: message{rcode: dns.RcodeNameError, authority: soaRecord(900, 0)}, want: Kinds{Denial: 1}, ttl: 5},
		"NXDOMAIN behind an alias": {
			message: message{rcode: dns.RcodeNameError, answer: []string{"www.example. 30 IN CNAME x.example."}, authority: soaRecord(900, 600)},
			want:    Kinds{Denial: 1}, ttl: 30},
		"NXDOMAIN without SOA": {
			message: message{rcode: dns.RcodeNameError}},
		"NXDOMAIN without SOA, with an NS": {
			message: message{rcode: dns.RcodeNameError, authority: []string{"example. 60 IN NS ns.example."}}, ttl: 60},
		"NODATA": {
			message: message{authority: soaRecord(900, 60)}, want: Kinds{Denial: 1}, ttl: 60},
		"NOERROR with nothing": {
			message: message{}, want: Kinds{Success: 1}},
		"NOERROR with a referral": {
			message: message{authority: []string{"example. 900 IN NS ns.example."}}, want: Kinds{Success: 1}, ttl: 5},
		"SERVFAIL": {
			message: message{rcode: dns.RcodeServerFailure}, want: Kinds{Denial: 1}},
		"SERVFAIL with records": {
			message: message{rcode: dns.RcodeServerFailure, authority: soaRecord(900, 900)}, want: Kinds{Denial: 1}, ttl: 5},
		"SERVFAIL, servfail 0": {
			tune:    func(c *config.Cache) { c.Servfail = 0 },
			message: message{rcode: dns.RcodeServerFailure}},
		"REFUSED":  {message: message{rcode: dns.RcodeRefused}},
		"FORMERR":  {message: message{rcode: dns.RcodeFormatError}},
		"NOTIMP":   {message: message{rcode: dns.RcodeNotImplemented}},
		"YXDOMAIN": {message: message{rcode: dns.RcodeYXDomain}},
		"REFUSED with records": {
			message: message{rcode: dns.RcodeRefused, answer: []string{addr}}, ttl: 5},
		"an answer cut short": {
			message: message{tc: true, answer: []string{addr}}, ttl: 300},
		"NXDOMAIN cut short": {
			message: message{tc: true, rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}, ttl: 60},
		"a zone transfer": {
			qtype: dns.TypeAXFR, message: message{answer: []string{"www.example. 60 IN SOA a. b. 1 2 3 4 5"}}, ttl: 60},
		"ANY": {
			qtype: dns.TypeANY, message: message{answer: []string{addr}}, want: Kinds{Success: 1}, ttl: 300},
		"asked without recursion": {
			shape: noRD, message: message{answer: []string{addr}}, ttl: 300},
		"no room for successes": {
			tune:    func(c *config.Cache) { c.Success.Entries = 0 },
			message: message{answer: []string{addr}}, ttl: 300},
		"no room for denials": {
			tune:    func(c *config.Cache) { c.Denial.Entries = 0 },
			message: message{rcode: dns.RcodeNameError, authority: soaRecord(60, 60)}, ttl: 60},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := defaults()
			if tt.tune != nil {
				tt.tune(cfg)
			}
			clock := newManualClock()
			c := newCache(cfg, Options{Clock: clock.now})
			qtype := dns.TypeA
			if tt.qtype != 0 {
				qtype = tt.qtype
			}
			shape := tt.shape
			if shape == nil {
				shape = func(*dns.Msg) {}
			}
			q := question(t, www, qtype, shape)
			first := fetch(t, c, q, tt.message)
			if first.Rcode != tt.message.rcode || first.Truncated != tt.message.tc {
				t.Errorf("the first client gets rcode %d, TC %v", first.Rcode, first.Truncated)
			}
			var want []uint32
			if len(tt.message.answer)+len(tt.message.authority)+len(tt.message.additional) > 0 {
				want = []uint32{tt.ttl}
			}
			equal(t, want, ttls(first), "TTLs of the first reply")
			equal(t, tt.want, c.Stats().Entries, "entries")
			second := answer(t, c, q)
			if kept := tt.want != (Kinds{}); kept != (second != nil) {
				t.Fatalf("answered from the cache: %v", second != nil)
			}
			if second != nil && first.String() != second.String() {
				t.Errorf("Fetch and Answer of one moment differ:\n%s", cmp.Diff(first.String(), second.String()))
			}
		})
	}
}
