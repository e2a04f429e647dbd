package zonefile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/zonefile"
)

// signed is a zone with NSEC records and, in place of signatures, records that look like some.
func signed() string {
	var b strings.Builder
	node := func(name, next, types string, records ...string) {
		for _, r := range records {
			fmt.Fprintf(&b, "%s 60 %s\n", name, r)
		}
		fmt.Fprintf(&b, "%s 60 NSEC %s %s\n", name, next, types)
		for kind := range strings.FieldsSeq(types) {
			if kind != "RRSIG" && (kind != "NS" || name == "@") {
				fmt.Fprintf(&b, "%s 60 RRSIG %s 13 2 60 20300101000000 20200101000000 1 z.test. aGVsbG8=\n", name, kind)
			}
		}
	}
	node("@", "alias", "NS SOA RRSIG NSEC", "SOA ns host 7 2 3 4 30", "NS ns")
	node("alias", "a.ent", "CNAME RRSIG NSEC", "CNAME x.wild")
	node("a.ent", "insecure", "A RRSIG NSEC", "A 192.0.2.1")
	node("insecure", "secure", "NS RRSIG NSEC", "NS ns.insecure")
	b.WriteString("ns.insecure 60 A 192.0.2.3\n")
	node("secure", "*.wild", "NS DS RRSIG NSEC", "NS ns.elsewhere.", "DS 1 13 2 00")
	node("*.wild", "www", "A RRSIG NSEC", "A 192.0.2.4")
	node("www", "@", "A RRSIG NSEC", "A 192.0.2.5")
	return b.String()
}

// owners are the owners and types of the records in a section of text, in short.
func owners(text string, section int) string {
	parts := strings.Split(text, " | ")
	if section >= len(parts) {
		return ""
	}
	var list []string
	for rr := range strings.SplitSeq(parts[section], "; ") {
		f := strings.Fields(rr)
		if len(f) < 4 {
			continue
		}
		kind := f[2]
		if kind == "RRSIG" {
			kind = "sig-" + f[3]
		}
		list = append(list, strings.TrimSuffix(strings.TrimSuffix(f[0], "z.test."), ".")+":"+kind)
	}
	return strings.Join(list, " ")
}

// TestSigned: clients that set DO get signatures, and the NSEC records of denials, wildcards and insecure
// delegations (RFC 4035, 3.1).
func TestSigned(t *testing.T) {
	tab := table(t, signed())
	const soa, ns = ":SOA :sig-SOA", ":NS :sig-NS"
	proof := func(name string) string { return " " + name + ":NSEC " + name + ":sig-NSEC" }
	for _, tt := range []struct {
		name              string
		qtype             uint16
		answer, authority string
	}{
		{"www", dns.TypeA, "www:A www:sig-A", ns},
		{"www", dns.TypeNSEC, "www:NSEC www:sig-NSEC", ns},
		{"www", dns.TypeTXT, "", soa + proof("www")},
		{"ent", dns.TypeA, "", soa + proof("alias")},
		{"b", dns.TypeA, "", soa + proof("alias") + proof("")},
		{"zzz", dns.TypeA, "", soa + proof("www") + proof("")},
		{"x.www", dns.TypeA, "", soa + proof("www")},
		{"x.wild", dns.TypeA, "x.wild:A x.wild:sig-A", ns + proof("*.wild")},
		{"x.wild", dns.TypeTXT, "", soa + proof("*.wild")},
		{"alias", dns.TypeA, "alias:CNAME alias:sig-CNAME x.wild:A x.wild:sig-A", ns + proof("*.wild")},
		{"a.secure", dns.TypeA, "", "secure:NS secure:DS secure:sig-DS"},
		{"secure", dns.TypeDS, "secure:DS secure:sig-DS", ns},
		{"insecure", dns.TypeA, "", "insecure:NS insecure:NSEC insecure:sig-NSEC"},
		{"insecure", dns.TypeDS, "", soa + proof("insecure")},
	} {
		t.Run(tt.name+" "+dns.Type(tt.qtype).String(), func(t *testing.T) {
			_, text := ask(t, tab, tt.name+".z.test.", tt.qtype, true)
			if got := owners(text, 1); got != tt.answer {
				t.Errorf("answer %q, want %q", got, tt.answer)
			}
			if got := owners(text, 2); got != tt.authority {
				t.Errorf("authority %q, want %q", got, tt.authority)
			}
			if _, text := ask(t, tab, tt.name+".z.test.", tt.qtype, false); tt.qtype != dns.TypeNSEC && (strings.Contains(text, "RRSIG") || strings.Contains(text, "NSEC")) {
				t.Errorf("without DO: %s", text)
			}
		})
	}
}

// BenchmarkAnswer answers for names of a zone of 10,000.
func BenchmarkAnswer(b *testing.B) {
	tab := table(b, "@ 60 SOA ns host 1 2 3 4 5\n@ 60 NS ns\nns 60 A 192.0.2.2\n$GENERATE 0-9999 h$ 60 A 192.0.2.1\n")
	benchmarkAnswer(b, tab, "h77.z.test.")
}

func benchmarkAnswer(b *testing.B, tab *zonefile.Table, name string) {
	b.Helper()
	packet, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	var q wire.Query
	var r wire.Reply
	buf := make([]byte, 2048)
	b.ReportAllocs()
	for b.Loop() {
		q.Parse(packet)
		r.Start(buf, &q)
		if o, _ := tab.Answer(&q, &r); o != authority.Answered {
			b.Fatal("no answer")
		}
		r.Finish(wire.MinUDP)
	}
	b.ReportMetric(float64(tab.Size()), "bytes")
}
