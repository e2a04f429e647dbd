package rewrite_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/test/race"
)

// parse returns the rules of these lines, each a rewrite directive.
func parse(t testing.TB, lines ...string) *rewrite.Rules {
	t.Helper()
	c, err := config.Parse(config.Source{Text: []byte(". {\nrewrite " + strings.Join(lines, "\nrewrite ") + "\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	return rewrite.New(c.Blocks[0].Rewrite)
}

// query returns a query for name, in presentation form.
func query(t testing.TB, name string, qtype uint16) *wire.Query {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	q := new(wire.Query)
	if q.Parse(packet) != wire.Serve {
		t.Fatalf("%s is no query", name)
	}
	return q
}

// wireName returns name in wire form.
func wireName(t testing.TB, name string) []byte {
	t.Helper()
	b, ok := wire.AppendName(nil, []byte(name))
	if !ok {
		t.Fatalf("%q is no name", name)
	}
	return b
}

// text returns name in presentation form; "-" for nil.
func text(name []byte) string {
	if name == nil {
		return "-"
	}
	return string(wire.AppendText(nil, name))
}

// TestApply: the name that is asked for instead. "" means that no rule matches, "-" that the
// result is not a valid name.
func TestApply(t *testing.T) {
	for _, tt := range []struct {
		rules string // separated by ;
		names map[string]string
	}{
		{"name a.test b.test", map[string]string{"a.test.": "b.test.", "A.Test.": "b.test.", "x.a.test.": "", "aa.test.": ""}},
		{"name exact a.test. B.test.", map[string]string{"a.test.": "b.test."}},
		{"name a.test .", map[string]string{"a.test.": "."}},
		{"name prefix www. web.", map[string]string{"www.a.test.": "web.a.test.", "xwww.a.test.": "", "www.": "web."}},
		{"name prefix www web", map[string]string{"www.a.test.": "web.a.test.", "www2.a.test.": ""}},
		{"name suffix .a.test .b.test.", map[string]string{"x.a.test.": "x.b.test.", "a.test.": "", "x.y.A.test.": "x.y.b.test."}},
		{"name suffix a.test b.test", map[string]string{"xa.test.": "xb.test.", "a.test.": "b.test."}},
		{"name substring t. u.", map[string]string{"t.test.": "u.tesu.", "none.": ""}},
		{"name substring .b. .", map[string]string{"a.b.c.": "a.c.", "a.b.": "a."}},
		{`name regex (.*)-(.*)\.test\. {2}.{1}.b.{0}`, map[string]string{"x-y.test.": "-", "x.test.": ""}},
		{`name regex ^(a)|b$ {1}.test`, map[string]string{"a.": "a.test.", "b.": ""}},
		{`name regex (a)?b\. x{1}y.test`, map[string]string{"b.": "xy.test.", "ab.": "xay.test."}},
		{`name regex (.*) {1}`, map[string]string{"a.": "-"}},
		{`name regex (.*)\. {1}.{1}x`, map[string]string{"a.": "a.ax."}},
		{`name regex ^\{1\}(.)\. {1}.{0}x`, map[string]string{"{1}a.": "a.{1}a.x."}},
		{`name regex ^a\\\.b\. c.test`, map[string]string{`a\.b.`: "c.test."}},
		{"continue name suffix .a .b;name suffix .b .c", map[string]string{"x.a.": "x.c.", "x.b.": "x.c."}},
		{"stop name suffix .a .b;name suffix .b .c", map[string]string{"x.a.": "x.b."}},
		{"name suffix .a .b;name suffix .a .c", map[string]string{"x.a.": "x.b."}},
		{"continue ttl suffix .a 5;name suffix .a .b", map[string]string{"x.a.": "x.b."}},
		{"ttl suffix .a 5;name suffix .a .b", map[string]string{"x.a.": "x.a."}},
		{"edns0 subnet unset;name suffix .a .b", map[string]string{"x.a.": "x.a."}},
		{"continue edns0 local unset 0xffee;name suffix .a .b", map[string]string{"x.a.": "x.b."}},
	} {
		rules := parse(t, strings.Split(tt.rules, ";")...)
		for name, want := range tt.names {
			var c rewrite.Change
			taken, err := c.Apply(rules, query(t, name, dns.TypeA), env)
			got := ""
			switch {
			case err != nil:
				got = "-"
			case taken:
				got = text(c.Name())
			}
			if got != want {
				t.Errorf("%s: %q is asked as %q, want %q", tt.rules, name, got, want)
			}
		}
	}
}

// TestTypes: types, classes and rcodes.
func TestTypes(t *testing.T) {
	var c rewrite.Change
	if _, err := c.Apply(parse(t, "continue type ANY HINFO", "type HINFO TXT"), query(t, "a.", dns.TypeANY), env); err != nil || c.Type != dns.TypeTXT {
		t.Errorf("asked for type %d, %v", c.Type, err)
	}
	q := query(t, "a.", dns.TypeA)
	q.Class = dns.ClassCHAOS
	rules := parse(t, "class CH IN", "type A AAAA")
	if _, err := c.Apply(rules, q, env); err != nil || c.Class != wire.ClassIN || c.Type != dns.TypeA || !rules.RewritesClass() {
		t.Errorf("asked for class %d, type %d, %v", c.Class, c.Type, err)
	}
	if parse(t, "type A AAAA").RewritesClass() || (*rewrite.Rules)(nil).RewritesClass() {
		t.Error("rules for classes where there are none")
	}
	for rules, want := range map[string]wire.Rcode{
		"rcode a.test SERVFAIL NOERROR":                                   wire.NoError,
		"rcode suffix .test 2 3":                                          wire.NXDomain,
		"rcode regex . SERVFAIL REFUSED":                                  wire.Refused,
		"rcode b.test SERVFAIL NOERROR":                                   wire.ServFail,
		"rcode a.test NXDOMAIN NOERROR":                                   wire.ServFail,
		"continue rcode a.test NXDOMAIN REFUSED;rcode a.test 2 3":         wire.Refused,
		"continue rcode a.test SERVFAIL NXDOMAIN;rcode a.test 3 REFUSED":  wire.NXDomain, // the last rule is the first
		"continue rcode prefix a SERVFAIL NXDOMAIN;name a.test b.test":    wire.NXDomain,
		"continue name a.test b.test;rcode exact b.test SERVFAIL BADSIG":  16,
		"continue name a.test b.test;rcode exact a.test SERVFAIL NOERROR": wire.ServFail,
	} {
		var c rewrite.Change
		if _, err := c.Apply(parse(t, strings.Split(rules, ";")...), query(t, "a.test.", dns.TypeA), env); err != nil {
			t.Fatal(err)
		}
		if got := c.Rcode(wire.ServFail); got != want {
			t.Errorf("%s: SERVFAIL becomes %s, want %s", rules, got, want)
		}
	}
}

// TestTTL: a range holds, and the last rule's first.
func TestTTL(t *testing.T) {
	for rules, want := range map[string][3]uint32{ // of 5, 50 and 500
		"ttl a.test 30":                             {30, 30, 30},
		"ttl a.test 30-60":                          {30, 50, 60},
		"ttl a.test -60":                            {5, 50, 60},
		"ttl a.test 30-":                            {30, 50, 500},
		"ttl a.test 0":                              {0, 0, 0},
		"ttl b.test 30":                             {5, 50, 500},
		"ttl substring a. 7":                        {7, 7, 7},
		"continue ttl a.test 40-;ttl a.test -20":    {40, 40, 40},
		"continue ttl a.test -20;ttl a.test 40-":    {20, 20, 20},
		"stop ttl a.test -20;ttl a.test 40-":        {5, 20, 20},
		"continue name a.test b.test;ttl b.test 30": {30, 30, 30},
	} {
		var c rewrite.Change
		if _, err := c.Apply(parse(t, strings.Split(rules, ";")...), query(t, "a.test.", dns.TypeA), env); err != nil {
			t.Fatal(err)
		}
		if got := [3]uint32{c.TTL(5), c.TTL(50), c.TTL(500)}; got != want {
			t.Errorf("%s: TTLs become %v, want %v", rules, got, want)
		}
	}
}

// TestReplyEdits: what names in the reply to a name become, as owners and in data.
func TestReplyEdits(t *testing.T) {
	for _, tt := range []struct {
		rules, qname string
		names        map[string][2]string
	}{
		{"name a.test b.test", "A.test.", map[string][2]string{
			"b.test.": {"a.test.", "a.test."}, "B.Test.": {"a.test.", "a.test."}, "X.b.test.": {"X.a.test.", "X.a.test."},
			"xb.test.": {"xb.test.", "xb.test."}, `x\.b.test.`: {`x\.b.test.`, `x\.b.test.`}, "test.": {"test.", "test."},
		}},
		{"name prefix www. web.", "www.a.", map[string][2]string{"web.a.": {"web.a.", "web.a."}}},
		{"name prefix www. web. answer auto", "www.a.", map[string][2]string{"web.a.": {"www.a.", "www.a."}, "web.b.": {"web.b.", "web.b."}}},
		{"name suffix .a.test .b.test", "x.a.test.", map[string][2]string{"x.b.test.": {"x.b.test.", "x.b.test."}}},
		{"name suffix .a.test .b.test answer auto", "x.a.test.", map[string][2]string{
			"x.b.test.": {"x.a.test.", "x.a.test."}, "Y.B.test.": {"Y.a.test.", "Y.a.test."}, "b.test.": {"b.test.", "b.test."},
		}},
		{`name regex (.*)\.a\. {1}.b answer auto`, "x.a.", map[string][2]string{"x.b.": {"x.a.", "x.a."}, "y.b.": {"y.b.", "y.b."}, "y.x.b.": {"y.x.a.", "y.x.a."}}},
		{`name regex (.*)\.a\. {1}.b answer name (.*)\.b\. {1}.c`, "x.a.", map[string][2]string{"y.b.": {"y.c.", "y.b."}, "Y.b.": {"Y.c.", "Y.b."}}},
		{`name regex (.*)\.a\. {1}.b answer value (.*)\.b\. {1}.c`, "x.a.", map[string][2]string{"y.b.": {"y.b.", "y.c."}}},
		{`name regex (.*)\.a\. {1}.b answer auto value (.*)\.b\. {1}.c`, "x.a.", map[string][2]string{"x.b.": {"x.a.", "x.c."}}},
		{`name regex (.*)\.a\. {1}.b answer name (.*)\.b\. {1}.c name (.*)\.c\. {1}.d`, "x.a.", map[string][2]string{"x.b.": {"x.c.", "x.b."}, "x.c.": {"x.d.", "x.c."}}},
		{`name regex (.*)\.a\. {1}.b answer name (.*)b(.*) {1}c{2}`, "x.a.", map[string][2]string{"x.b.": {"x.c.", "x.b."}}}, // two dots
		{`name regex (.*)\.a\. {1}.b answer name (.*)b\. {1}..c`, "x.a.", map[string][2]string{"x.b.": {"-", "x.b."}}},
		{"continue name suffix .a .b answer auto;name suffix .b .c answer auto", "x.a.", map[string][2]string{"x.c.": {"x.a.", "x.a."}, "x.b.": {"x.a.", "x.a."}}},
		{"continue name x.a x.b;continue name x.b x.c", "x.a.", map[string][2]string{"x.c.": {"x.a.", "x.a."}}},
		{"name x.a .", "x.a.", map[string][2]string{".": {"x.a.", "x.a."}, "y.": {"y.x.a.", "y.x.a."}}},
	} {
		rules := parse(t, strings.Split(tt.rules, ";")...)
		for name, want := range tt.names {
			var c rewrite.Change
			if taken, err := c.Apply(rules, query(t, tt.qname, dns.TypeA), env); err != nil || !taken {
				t.Fatalf("%s: taken %t, %v", tt.rules, taken, err)
			}
			if got := [2]string{text(c.Owner(wireName(t, name))), text(c.Value(wireName(t, name)))}; got != want {
				t.Errorf("%s: %q becomes %q, want %q", tt.rules, name, got, want)
			}
		}
	}
}

// TestCNAMETarget: the name that is asked for instead of a CNAME's target, and the target in
// the reply.
func TestCNAMETarget(t *testing.T) {
	for _, tt := range []struct{ rules, target, ask, leads string }{
		{"cname a.test b.test", "a.test.", "b.test.", "b.test."},
		{"cname a.test b.test", "A.Test.", "b.test.", "b.test."},
		{"cname a.test b.test", "x.a.test.", "", ""},
		{"cname prefix a. b.", "a.test.", "b.test.", "b.test."},
		{"cname suffix .test. .org.", "a.test.", "a.org.", "a.org."},
		{"cname substring es os", "a.test.", "a.tost.", "a.tost."},
		{`cname regex (.*)\.TEST\. {1}.org.`, "a.Test.", "a.org.", "a.org."},
		{"continue cname a.test b.test;cname b.test c.test", "b.test.", "c.test.", "c.test."},
		{"continue cname a.test b.test;cname c.test a.test", "c.test.", "b.test.", "b.test."},
		{"continue name prefix q. r. answer value (.*)c(.*)\\. {1}d{2};cname a.test c.test", "a.test.", "c.test.", "d.test."},
		{"continue cname a.test c.test;name prefix q. r. answer value (.*)b(.*)\\. {1}a{2}", "b.test.", "c.test.", "c.test."},
		{"cname regex ^(.*)\\.$ {1}..{1}", "a.test.", "", ""},
	} {
		var c rewrite.Change
		if _, err := c.Apply(parse(t, strings.Split(tt.rules, ";")...), query(t, "q.test.", dns.TypeA), env); err != nil || !c.RewritesCNAME() {
			t.Fatalf("%s: %v", tt.rules, err)
		}
		ask, leads, ok := c.CNAMETarget(wireName(t, tt.target))
		got := [2]string{}
		if ok {
			got = [2]string{text(ask), text(leads)}
		}
		if got != [2]string{tt.ask, tt.leads} {
			t.Errorf("%s: %q becomes %q, want %q and %q", tt.rules, tt.target, got, tt.ask, tt.leads)
		}
	}
}

// TestApplyAllocs: neither a query that no rule matches nor one that an exact rule renames
// allocates, nor does its reply.
func TestApplyAllocs(t *testing.T) {
	if race.Enabled() {
		t.Skip("the race detector drops items of regexp's pools")
	}
	rules := parse(t, "name a.test b.test", "name suffix .a.test .b.test answer auto", "name substring x. y.", `name regex ^(a.*)\.c\.test\.$ {1}.b.test`, "type MX A")
	var c rewrite.Change
	owner := wireName(t, "b.test.")
	for name, q := range map[string]*wire.Query{"taken": query(t, "a.test.", dns.TypeA), "not taken": query(t, "www.example.org.", dns.TypeA)} {
		do := func() {
			if taken, _ := c.Apply(rules, q, env); taken {
				c.Owner(owner)
			}
		}
		do()
		if n := testing.AllocsPerRun(100, do); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// FuzzChange: for any names, each result is a valid name.
func FuzzChange(f *testing.F) {
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3)
	f.Add([]byte("\x01a\x04test\x00"), []byte("\x01b\x04test\x00"))
	f.Add(wireName(f, long+strings.Repeat("b", 61)+"."), wireName(f, long+strings.Repeat("c", 61)+"."))
	f.Add(wireName(f, strings.Repeat("a.", 127)), wireName(f, strings.Repeat("a.", 127)))
	f.Add(wireName(f, strings.Repeat(`\000.`, 127)), []byte{0})
	rules := []*rewrite.Rules{
		parse(f, "continue name substring a. aa.aa.", "continue name substring a. aa.aa.", `name regex (.*)\.$ {1}.{1}.{1} answer auto`),
		parse(f, `name regex (.*) {1}{0}{1}x answer name (.*) {1}{1}.{1} value (.*)\. {1}.{1}`),
		parse(f, "continue name suffix . .bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb answer auto", "continue name prefix a. bbb. answer auto", "cname substring . .aaaaaaaaaaaaaaaa."),
		parse(f, `continue name regex ^(.) \{1} answer auto`, `name regex ^(.*)\.$ {1}\065.{1} answer auto answer value ^(..) {1}\`),
	}
	f.Fuzz(func(t *testing.T, qname, name []byte) {
		packet := append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, qname...)
		var q wire.Query
		if q.Parse(append(packet, 0, 1, 0, 1)) != wire.Serve || len(q.Name()) != len(qname) {
			return
		}
		var other wire.Query
		packet = append([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...)
		if other.Parse(append(packet, 0, 1, 0, 1)) != wire.Serve || len(other.Name()) != len(name) {
			return
		}
		for _, r := range rules {
			var c rewrite.Change
			taken, err := c.Apply(r, &q, env)
			if err != nil || !taken {
				continue
			}
			checkWireName(t, c.Name())
			checkWireName(t, c.Owner(name))
			checkWireName(t, c.Value(name))
			if ask, leads, ok := c.CNAMETarget(name); ok {
				checkWireName(t, ask)
				checkWireName(t, leads)
			}
		}
	})
}

// checkWireName fails the test unless name is nil or a valid name in wire form.
func checkWireName(t *testing.T, name []byte) {
	t.Helper()
	if name == nil {
		return
	}
	if len(name) > wire.MaxName {
		t.Fatalf("a name of %d bytes", len(name))
	}
	off := 0
	for off < len(name) && name[off] != 0 && name[off] <= wire.MaxLabel {
		off += 1 + int(name[off])
	}
	if off != len(name)-1 || name[off] != 0 {
		t.Fatalf("%q is no name", name)
	}
}

// BenchmarkApply measures matching and not matching rules.
func BenchmarkApply(b *testing.B) {
	for name, rule := range map[string]string{"exact": "name www.a.test b.test", "suffix": "name suffix .a.test .b.test answer auto", "regex": `name regex (.*)\.a\.test {1}.b.test answer auto`, "none": "name x.test y.test"} {
		b.Run(name, func(b *testing.B) {
			rules, q := parse(b, rule), query(b, "www.a.test.", dns.TypeA)
			var c rewrite.Change
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Apply(rules, q, env); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestQuestionOnly: which rules match does not depend on more than the question, unless a rule is about EDNS options or
// metadata.
func TestQuestionOnly(t *testing.T) {
	for line, want := range map[string]bool{
		"name a.test b.test":                      true,
		"name suffix .a.test .b.test answer auto": true,
		"type AAAA A":                             true,
		"class CH IN":                             true,
		"ttl a.test 5":                            true,
		"rcode a.test NXDOMAIN NOERROR":           true,
		"cname exact a.test b.test":               true,
		"edns0 local set 0xffee 0x61":             false,
		"edns0 nsid set":                          false,
		"name regex (.*) {1}.{kubernetes/client-namespace} metadata": false,
	} {
		if got := parse(t, "name x.test y.test", line).QuestionOnly(); got != want {
			t.Errorf("%s: %t, want %t", line, got, want)
		}
	}
}
