package template_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/test/race"
)

func parse(t testing.TB, text string) *template.Templates {
	t.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + text + "\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	return template.New(c.Blocks[0].Template)
}

var client = netip.MustParseAddr("::ffff:192.0.2.7")

// ask sends one query through list. It returns the outcome and the reply.
func ask(t testing.TB, list *template.Templates, name string, qtype uint16, lookup template.Lookup) (template.Outcome, *dns.Msg, error) {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.SetEdns0(1232, false)
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var q wire.Query
	if q.Parse(packet) != wire.Serve {
		t.Fatalf("%s is no query", name)
	}
	var r wire.Reply
	r.Start(nil, &q)
	outcome, err := list.Answer(&q, client, &r, nil, lookup)
	got := new(dns.Msg)
	if err := got.Unpack(r.Finish(wire.MaxMessage)); err != nil {
		t.Fatal(err)
	}
	return outcome, got, err
}

// summary returns a reply as one line: rcode, records by section, extended error.
func summary(m *dns.Msg) string {
	out := dns.RcodeToString[m.Rcode]
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		out += " |"
		for _, rr := range section {
			if opt, ok := rr.(*dns.OPT); ok {
				for _, o := range opt.Option {
					out += " " + o.String()
				}
				continue
			}
			out += " " + strings.Join(strings.Fields(rr.String()), " ") + ";"
		}
	}
	return out
}

func TestAnswer(t *testing.T) {
	const ip = "template IN A t.test {\nmatch \"^ip-(?P<a>[0-9]+)-([0-9]+)[.]t[.]test[.]$\"\nmatch ^second\nanswer \"{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ index .Match 2 }}\"\n%s}"
	for _, tt := range []struct {
		name, text, qname string
		qtype             uint16
		want              string // "" for NotMine
	}{
		{"groups", ip, "IP-1-2.t.test.", dns.TypeA, "NOERROR | IP-1-2.t.test. 60 IN A 10.0.1.2; | |"},
		{"any type", ip, "ip-1-2.t.test.", dns.TypeANY, "NOERROR | ip-1-2.t.test. 60 IN A 10.0.1.2; | |"},
		{"another type", ip, "ip-1-2.t.test.", dns.TypeAAAA, ""},
		{"another zone", ip, "ip-1-2.other.", dns.TypeA, ""},
		{"no pattern matches", ip, "ip-1.t.test.", dns.TypeA, "SERVFAIL | | |"},
		{"no pattern matches, fallthrough", strings.Replace(ip, "%s", "fallthrough\n", 1), "ip-1.t.test.", dns.TypeA, ""},
		{"fallthrough of another zone", strings.Replace(ip, "%s", "fallthrough x.t.test\n", 1), "ip-1.t.test.", dns.TypeA, "SERVFAIL | | |"},
		{"fallthrough of a zone", strings.Replace(ip, "%s", "fallthrough x.t.test\n", 1), "ip-1.x.t.test.", dns.TypeA, ""},
		{"no record", ip, "ip-1-999.t.test.", dns.TypeA, "SERVFAIL | | |"},
		{"a missing group", ip, "second.t.test.", dns.TypeA, "SERVFAIL | | |"},
		{"empty", "template ANY ANY", "x.", dns.TypeMX, "NOERROR | | |"},
		{
			"sections", "template IN ANY {\nadditional \"a. 1 IN A 192.0.2.1\" \"b. 1 IN A 192.0.2.2\"\nauthority \"{{ .Zone }} 2 IN SOA n. h. (1 2 3 4 5)\"\nanswer \"{{ .Name }} IN TXT {{ .Type }} {{ .Class }}\"\n}", "x.", dns.TypeTXT,
			`NOERROR | x. 3600 IN TXT "TXT" "IN"; | . 2 IN SOA n. h. 1 2 3 4 5; | a. 1 IN A 192.0.2.1; b. 1 IN A 192.0.2.2;`,
		},
		{"rcode", "template IN ANY {\nrcode NXDOMAIN\nederror 21 gone\n}", "x.", dns.TypeA, "NXDOMAIN | | | 21 (Not Supported): (gone)"},
		{"SERVFAIL has nothing", "template IN ANY {\nrcode SERVFAIL\nanswer \"x. IN A 192.0.2.1\"\n}", "x.", dns.TypeA, "SERVFAIL | | |"},
		{"in order", "template IN A {\nmatch ^a\nanswer \"x. 1 IN A 192.0.2.1\"\nfallthrough\n}\ntemplate IN A {\nanswer \"x. 1 IN A 192.0.2.2\"\n}", "a.", dns.TypeA, "NOERROR | x. 1 IN A 192.0.2.1; | |"},
		{"the second", "template IN A {\nmatch ^a\nanswer \"x. 1 IN A 192.0.2.1\"\nfallthrough\n}\ntemplate IN A {\nanswer \"x. 1 IN A 192.0.2.2\"\n}", "b.", dns.TypeA, "NOERROR | x. 1 IN A 192.0.2.2; | |"},
		{"the longest zone", "template IN A a.test . b.a.test {\nanswer \"{{ .Zone }} 1 IN A 192.0.2.1\"\n}", "x.b.a.test.", dns.TypeA, "NOERROR | b.a.test. 1 IN A 192.0.2.1; | |"},
		{
			"the query", "template IN TXT {\nmatch (x)\nanswer \"y. 1 IN TXT {{ .Question.Name }} {{ (index .Message.Question 0).Qtype }} [{{ .Meta `a/b` }}] {{ parseInt `7` 10 8 }} {{ .Remote }} {{ .Regex }}\"\n}", "X.", dns.TypeTXT,
			`NOERROR | y. 1 IN TXT "X." "16" "[]" "7" "192.0.2.7" "x"; | |`,
		},
		{"no output", "template IN A {\nanswer \"\"\n}", "x.", dns.TypeA, "SERVFAIL | | |"},
		{"output too long", "template IN TXT {\nanswer \"{{ range $i, $e := .Match }}{{ printf `%070000d` $i }}{{ end }}\"\n}", "x.", dns.TypeTXT, "SERVFAIL | | |"},
		{"no such field", "template IN A {\nanswer \"{{ .Naem }}\"\n}", "x.", dns.TypeA, "SERVFAIL | | |"},
		{"odd names", `template IN A {
match "^(.*)[.]$"
answer "{{ .Name }} 1 IN A 192.0.2.1"
}`, `a\.b\000\@c.`, dns.TypeA, `NOERROR | a\.b\000\@c. 1 IN A 192.0.2.1; | |`},
		{"an alias", "template IN ANY {\nanswer \"{{ .Name }} 1 IN CNAME y.\"\n}", "x.", dns.TypeMX, "NOERROR | x. 1 IN CNAME y.; | |"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			outcome, m, err := ask(t, parse(t, strings.Replace(tt.text, "%s", "", 1)), tt.qname, tt.qtype, nil)
			if tt.want == "" {
				if outcome != template.NotMine || err != nil || summary(m) != "NOERROR | | |" || m.Authoritative {
					t.Fatalf("outcome %d, %v\n%s", outcome, err, m)
				}
				return
			}
			if got := summary(m); outcome != template.Answered || got != tt.want {
				t.Errorf("outcome %d, %v\n%s, want\n%s", outcome, err, got, tt.want)
			}
			if failed := strings.HasPrefix(tt.want, "SERVFAIL"); m.Authoritative == failed {
				t.Errorf("authoritative: %t", m.Authoritative)
			}
		})
	}
}

// TestCNAME: the target of a CNAME is looked up, and its addresses follow the CNAME.
func TestCNAME(t *testing.T) {
	list := parse(t, "template IN ANY {\nanswer \"{{ .Name }} 1 IN CNAME Y.test.\" \"{{ .Name }} 1 IN A 192.0.2.9\"\nauthority \". 1 IN NS n.\"\n}")
	if outcome, m, err := ask(t, list, "x.", dns.TypeA, nil); outcome != template.WouldWait || err != nil || len(m.Answer) != 0 {
		t.Fatalf("outcome %d, %v\n%s", outcome, err, m)
	}
	var asked []string
	outcome, m, err := ask(t, list, "x.", dns.TypeA, func(name []byte) (*wire.Reply, error) {
		asked = append(asked, string(name))
		var q wire.Query
		q.Parse(wire.AppendQuery(nil, 0, name, dns.TypeA, nil, wire.MinUDP))
		var r wire.Reply
		r.Start(nil, &q)
		r.Add(wire.Answer, wire.AtQuestion, dns.TypeA, 5, []byte{192, 0, 2, 1})
		return &r, nil
	})
	const want = "NOERROR | x. 1 IN CNAME Y.test.; y.test. 5 IN A 192.0.2.1; x. 1 IN A 192.0.2.9; | . 1 IN NS n.; |"
	if got := summary(m); outcome != template.Answered || err != nil || got != want {
		t.Errorf("outcome %d, %v\n%s, want\n%s", outcome, err, got, want)
	}
	if diff := cmp.Diff([]string{"\x01y\x04test\x00"}, asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	broken := errors.New("broken")
	_, m, err = ask(t, list, "x.", dns.TypeAAAA, func([]byte) (*wire.Reply, error) { return nil, broken })
	if !errors.Is(err, broken) || summary(m) != "NOERROR | x. 1 IN CNAME Y.test.; x. 1 IN A 192.0.2.9; | . 1 IN NS n.; |" {
		t.Errorf("%v\n%s", err, m)
	}
}

// TestAnswerAllocs: a query allocates nothing if no template has its zone and type, or if no
// pattern matches.
func TestAnswerAllocs(t *testing.T) {
	if race.Enabled() {
		t.Skip("the race detector drops items of pools")
	}
	list := parse(t, "template IN A a.test\ntemplate IN MX {\nfallthrough\n}\ntemplate IN A b.test {\nmatch ^c\nfallthrough\n}")
	for _, name := range []string{"www.example.org.", "www.b.test."} {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		packet, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var q wire.Query
		q.Parse(packet)
		var r wire.Reply
		r.Start(nil, &q)
		if n := testing.AllocsPerRun(100, func() {
			if outcome, _ := list.Answer(&q, client, &r, nil, nil); outcome != template.NotMine {
				t.Fatal(outcome)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzAnswer: for any name, the reply can be unpacked.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\x01a\x00"), uint16(1))
	f.Add([]byte("\x02a.\x05 \x00@()\x00"), uint16(255))
	list := parse(f, "template IN ANY {\nmatch \"^(.*)[.](.*)[.]$\" \"(.*)\"\nanswer \"{{ .Name }} 1 IN CNAME {{ index .Match 1 }}.{{ .Name }}\" \"{{ .Name }} 1 IN TXT \\\"{{ index .Match 1 }}\\\" {{ .Type }}\"\nadditional \"x.{{ .Name }} 1 IN MX 1 {{ .Name }}\"\n}")
	f.Fuzz(func(t *testing.T, name []byte, qtype uint16) {
		packet := append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...)
		var q wire.Query
		if q.Parse(append(packet, byte(qtype>>8), byte(qtype), 0, 1)) != wire.Serve {
			return
		}
		var r wire.Reply
		r.Start(nil, &q)
		if outcome, _ := list.Answer(&q, client, &r, nil, func([]byte) (*wire.Reply, error) { return nil, nil }); outcome != template.Answered {
			t.Fatalf("outcome %d", outcome)
		}
		var m dns.Msg
		if err := m.Unpack(r.Finish(wire.MaxMessage)); err != nil {
			t.Fatal(err)
		}
	})
}
