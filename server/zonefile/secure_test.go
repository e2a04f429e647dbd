package zonefile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
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
	node("alias", "*.away", "CNAME RRSIG NSEC", "CNAME x.wild")
	node("*.away", "*.cname", "CNAME RRSIG NSEC", "CNAME x.elsewhere.")
	node("*.cname", "a.ent", "CNAME RRSIG NSEC", "CNAME www")
	node("a.ent", "*.gone", "A RRSIG NSEC", "A 192.0.2.1")
	node("*.gone", "*.in", "CNAME RRSIG NSEC", "CNAME nowhere")
	node("*.in", "insecure", "CNAME RRSIG NSEC", "CNAME h.secure")
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
		{"ent", dns.TypeA, "", soa + proof("*.cname")},
		{"b", dns.TypeA, "", soa + proof("*.away") + proof("")},
		{"zzz", dns.TypeA, "", soa + proof("www") + proof("")},
		{"x.www", dns.TypeA, "", soa + proof("www")},
		{"x.wild", dns.TypeA, "x.wild:A x.wild:sig-A", ns + proof("*.wild")},
		{"x.wild", dns.TypeTXT, "", soa + proof("*.wild")},
		{"alias", dns.TypeA, "alias:CNAME alias:sig-CNAME x.wild:A x.wild:sig-A", ns + proof("*.wild")},
		{"x.cname", dns.TypeA, "x.cname:CNAME x.cname:sig-CNAME www:A www:sig-A", ns + proof("*.cname")},
		{"x.cname", dns.TypeTXT, "x.cname:CNAME x.cname:sig-CNAME", soa + proof("www") + proof("*.cname")},
		{"x.gone", dns.TypeA, "x.gone:CNAME x.gone:sig-CNAME", soa + proof("*.gone") + proof("insecure") + proof("")},
		{"x.in", dns.TypeA, "x.in:CNAME x.in:sig-CNAME", "secure:NS secure:DS secure:sig-DS" + proof("*.in")},
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

// TestSignedAliasOut: a wildcard's alias that leads out of the zone has the wildcard's proof.
func TestSignedAliasOut(t *testing.T) {
	tab := table(t, signed())
	for _, tt := range []struct {
		name      string
		rcode     wire.Rcode
		answers   int
		authority string
	}{
		{"answered", wire.NoError, 1, ":NS :sig-NS *.away:NSEC *.away:sig-NSEC"},
		{"NODATA", wire.NoError, 0, ":SOA :sig-SOA *.away:NSEC *.away:sig-NSEC"},
		{"NXDOMAIN", wire.NXDomain, 0, ":SOA :sig-SOA *.away:NSEC *.away:sig-NSEC"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, err := wire.ParseName("x.away.z.test")
			if err != nil {
				t.Fatal(err)
			}
			var q wire.Query
			var r wire.Reply
			q.Parse(wire.AppendClientQuery(nil, 1, []byte(name), dns.TypeA, true, false))
			r.Start(nil, &q)
			o, lead := tab.Answer(&q, &r)
			if o != authority.Leads {
				t.Fatalf("outcome %v, want an alias that leads out", o)
			}
			lead.Zone.Complete(&q, &r, tt.rcode, tt.answers)
			var got dns.Msg
			if err := got.Unpack(r.Finish(wire.MaxMessage)); err != nil {
				t.Fatal(err)
			}
			if got := owners(inShort(&got), 2); got != tt.authority {
				t.Errorf("authority %q, want %q", got, tt.authority)
			}
		})
	}
}

// TestSignedDenialTTL: the signature of a denial's SOA record has its TTL, also where MINIMUM lowers that (RFC 4034, 3).
func TestSignedDenialTTL(t *testing.T) {
	_, text := ask(t, table(t, signed()), "www.z.test.", dns.TypeTXT, true)
	for _, want := range []string{"z.test. 30 SOA ", "z.test. 30 RRSIG SOA "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
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

// TestDSOfZone: the zone that delegates another one of the table has its DS record (RFC 4035, 3.1.4.1).
func TestDSOfZone(t *testing.T) {
	folder := t.TempDir()
	var b strings.Builder
	for name, records := range map[string]string{
		"z.test":             "sub NS ns.elsewhere.\nsub DS 1 13 2 00\n",
		"sub.z.test":         "@ NS ns.elsewhere.\n",
		"undelegated.test":   "other NS ns.elsewhere.\n",
		"x.undelegated.test": "@ NS ns.elsewhere.\n",
	} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte("$TTL 60\n@ SOA ns host 1 2 3 4 5\n"+records), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "file %q %s\n", path, name)
	}
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + b.String() + "}\n")})
	if err != nil {
		t.Fatal(err)
	}
	tab, err := zonefile.New(c.Blocks[0].ZoneFile, zonefile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, answer, authority string }{
		{"sub.z.test.", "sub:DS", ""},
		{"z.test.", "", ":SOA"},
		{"x.undelegated.test.", "", "x.undelegated.test:SOA"},
	} {
		_, text := ask(t, tab, tt.name, dns.TypeDS, false)
		if got := owners(text, 1); got != tt.answer {
			t.Errorf("%s: answer %q, want %q", tt.name, got, tt.answer)
		}
		if got := owners(text, 2); got != tt.authority {
			t.Errorf("%s: authority %q, want %q", tt.name, got, tt.authority)
		}
	}
	if _, text := ask(t, tab, "sub.z.test.", dns.TypeSOA, false); owners(text, 1) != "sub:SOA" {
		t.Errorf("the SOA record of sub.z.test: %s", text)
	}
}
