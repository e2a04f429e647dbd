package config

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// samePattern compares patterns by their text.
var samePattern = cmp.Comparer(func(a, b *regexp.Regexp) bool {
	return (a == nil) == (b == nil) && (a == nil || a.String() == b.String())
})

func TestRewrite(t *testing.T) {
	re := regexp.MustCompile
	for text, want := range map[string][]RewriteRule{
		"rewrite name A.test b.test":                   {{Field: RewriteName, Match: NameMatch{Text: "a.test."}, To: "b.test.", Auto: true}},
		"rewrite stop name exact a.test. b.test.":      {{Field: RewriteName, Match: NameMatch{Text: "a.test."}, To: "b.test.", Auto: true}},
		"rewrite CONTINUE Name Suffix .a.test .b.test": {{Field: RewriteName, Continue: true, Match: NameMatch{Kind: MatchSuffix, Text: ".a.test."}, To: ".b.test."}},
		"rewrite name prefix a b answer auto":          {{Field: RewriteName, Match: NameMatch{Kind: MatchPrefix, Text: "a."}, To: "b.", Auto: true}},
		"rewrite name substring a b answer value c d answer value (e) {1}": {{
			Field: RewriteName, Match: NameMatch{Kind: MatchSubstring, Text: "a."}, To: "b.",
			Answers: []RewriteAnswer{{Value: true, Pattern: re("c"), To: "d."}, {Value: true, Pattern: re("(e)"), To: "{1}."}},
		}},
		`rewrite name regex (.*)\.A\.test {1}.B.test answer name (.*)\.b {1}.a value x y`: {{
			Field: RewriteName, Match: NameMatch{Kind: MatchRegex, Pattern: re(`(.*)\.A\.test`)}, To: "{1}.b.test.",
			Answers: []RewriteAnswer{{Pattern: re(`(.*)\.b`), To: "{1}.a."}, {Value: true, Pattern: re("x"), To: "y."}},
		}},
		"rewrite stop {\nname regex (a) {0}{1}\nanswer auto\n}": {{Field: RewriteName, Match: NameMatch{Kind: MatchRegex, Pattern: re("(a)")}, To: "{0}{1}.", Auto: true}},
		"rewrite {\ntype ANY hinfo\n}":                          {{Field: RewriteType, FromCode: dns.TypeANY, ToCode: dns.TypeHINFO}},
		"rewrite class ch in":                                   {{Field: RewriteClass, FromCode: dns.ClassCHAOS, ToCode: dns.ClassINET}},
		"rewrite ttl a.test 30":                                 {{Field: RewriteTTL, Match: NameMatch{Text: "a.test."}, MinTTL: 30, MaxTTL: 30}},
		"rewrite ttl suffix a.test 30-60":                       {{Field: RewriteTTL, Match: NameMatch{Kind: MatchSuffix, Text: "a.test."}, MinTTL: 30, MaxTTL: 60}},
		"rewrite ttl regex . -60":                               {{Field: RewriteTTL, Match: NameMatch{Kind: MatchRegex, Pattern: re(".")}, MaxTTL: 60}},
		"rewrite ttl a.test 30-":                                {{Field: RewriteTTL, Match: NameMatch{Text: "a.test."}, MinTTL: 30, MaxTTL: 1<<31 - 1}},
		"rewrite rcode a.test SERVFAIL 3":                       {{Field: RewriteRcode, Match: NameMatch{Text: "a.test."}, FromCode: 2, ToCode: 3}},
		"rewrite rcode prefix a. servfail NoError":              {{Field: RewriteRcode, Match: NameMatch{Kind: MatchPrefix, Text: "a."}, FromCode: 2}},
		"rewrite cname A.test b.test":                           {{Field: RewriteCNAME, Match: NameMatch{Text: "a.test."}, To: "b.test."}},
		"rewrite cname suffix .A .b":                            {{Field: RewriteCNAME, Match: NameMatch{Kind: MatchSuffix, Text: ".a"}, To: ".b"}},
		`rewrite cname regex (.*)\.A {1}.B`:                     {{Field: RewriteCNAME, Match: NameMatch{Kind: MatchRegex, Pattern: re(`(?i)(.*)\.A`)}, To: "{1}.b"}},
		"rewrite edns0 local unset 0xffee\nrewrite continue edns0 subnet unset\nrewrite edns0 nsid unset": {
			{Field: RewriteEDNS0, Option: OptionRule{Action: OptionUnset, Code: 0xffee}},
			{Field: RewriteEDNS0, Continue: true, Option: OptionRule{Action: OptionUnset, Code: dns.EDNS0SUBNET, Value: OptionSubnet}},
			{Field: RewriteEDNS0, Option: OptionRule{Action: OptionUnset, Code: dns.EDNS0NSID}},
		},
		"rewrite edns0 local set 0xffee abcd":              {{Field: RewriteEDNS0, Option: OptionRule{Code: 0xffee, Data: []byte("abcd")}}},
		"rewrite edns0 LOCAL Append 65518 0x0Aff revert":   {{Field: RewriteEDNS0, Option: OptionRule{Action: OptionAppend, Code: 0xffee, Data: []byte{10, 255}}}},
		"rewrite edns0 local replace 1 {client_ip}":        {{Field: RewriteEDNS0, Option: OptionRule{Action: OptionReplace, Code: 1, Value: OptionClientIP}}},
		"rewrite edns0 local set 1 {kubernetes/Namespace}": {{Field: RewriteEDNS0, Option: OptionRule{Code: 1, Value: OptionMetadata, Label: "kubernetes/Namespace"}}},
		"rewrite continue {\nedns0 nsid set revert\n}":     {{Field: RewriteEDNS0, Continue: true, Option: OptionRule{Code: dns.EDNS0NSID}}},
		"rewrite edns0 subnet set 24 56":                   {{Field: RewriteEDNS0, Option: OptionRule{Code: dns.EDNS0SUBNET, Value: OptionSubnet, Prefix4: 24, Prefix6: 56}}},
		"rewrite name regex ^(x) {1}.{a/B}C.d metadata":    {{Field: RewriteName, Match: NameMatch{Kind: MatchRegex, Pattern: re("^(x)")}, Expand: []NamePart{{Group: 1}, {Text: ".", Group: -1}, {Group: -1, Label: "a/B"}, {Text: "c.d.", Group: -1}}}},
		"rewrite name regex x {a/b} metadata answer auto":  {{Field: RewriteName, Match: NameMatch{Kind: MatchRegex, Pattern: re("x")}, Auto: true, Expand: []NamePart{{Group: -1, Label: "a/b"}, {Text: ".", Group: -1}}}},
		"rewrite name a b\nrewrite continue ttl c 1": {
			{Field: RewriteName, Match: NameMatch{Text: "a."}, To: "b.", Auto: true},
			{Field: RewriteTTL, Continue: true, Match: NameMatch{Text: "c."}, MinTTL: 1, MaxTTL: 1},
		},
	} {
		if diff := cmp.Diff(&Rewrite{Rules: want}, one(t, "rewrite", text), samePattern); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

// TestRewriteFaults: each bad rule gets one error that names what is wrong and what to do.
func TestRewriteFaults(t *testing.T) {
	for text, want := range map[string]string{
		"rewrite":                                                 "rewrite: the field to rewrite is missing; write: rewrite [continue|stop] name|",
		"rewrite stop":                                            "the field to rewrite is missing",
		"rewrite nam a b":                                         `unknown field "nam" (did you mean "name"?); allowed: class, cname, edns0, name, rcode, ttl, type`,
		"rewrite answer auto":                                     "an answer is rewritten behind a name",
		"rewrite name a":                                          "rewrite name: an argument is missing; write: rewrite [continue|stop] name",
		"rewrite name exat a b":                                   `unknown type of match "exat" (did you mean "exact"?); allowed: exact, prefix, regex, substring, suffix`,
		"rewrite name a..b c":                                     "has an empty label",
		"rewrite name a b..c":                                     "has an empty label",
		"rewrite name regex (a b":                                 `"(a" is no regular expression of Go's (RE2): error parsing regexp`,
		"rewrite name regex (a) {2}":                              `{2} names a group that the pattern "(a)", which has 1, doesn't have`,
		"rewrite name regex a b answer name (a) {9}":              "{9} names a group",
		"rewrite name regex a b answer":                           "auto, name or value is missing behind answer",
		"rewrite name regex a b auto":                             `"auto" stands where only answer may`,
		"rewrite name regex a b answer atuo":                      `unknown answer "atuo" (did you mean "auto"?); allowed: auto, name, value`,
		"rewrite name regex a b answer name c":                    `an argument is missing behind "name"; write: answer name FROM TO`,
		"rewrite name regex a b answer auto name c d":             "answer auto and answer name say the same thing twice",
		"rewrite name suffix a b metadata":                        "metadata goes with a pattern; write: rewrite [continue|stop] name regex FROM TO metadata",
		"rewrite name regex (a) {2}.{x/y} metadata":               `{2} names a group that the pattern "(a)", which has 1, doesn't have`,
		"rewrite name regex a {x}.b metadata":                     "{x} is neither a group of the pattern such as {1} nor a name of metadata such as {kubernetes/client-namespace}",
		"rewrite name regex a {x/y metadata":                      `the braces of "{x/y" do not match`,
		"rewrite name regex a x/y} metadata":                      `the braces of "x/y}" do not match`,
		"rewrite name regex a b metadata auto":                    `"auto" stands where only answer may`,
		"rewrite name regex " + strings.Repeat("a", 10001) + " b": "the pattern has 10001 bytes; allowed: up to 10000",
		"rewrite type A":                                          "rewrite type: an argument is missing; write: rewrite [continue|stop] type FROM TO",
		"rewrite type A B":                                        `"B" is no type of DNS such as A, AAAA or HINFO`,
		"rewrite type A AAAA MX":                                  `"MX" is one argument too many`,
		"rewrite class XX IN":                                     `"XX" is no class of DNS such as IN or CH`,
		"rewrite class IN CH":                                     "only the class IN is served",
		"rewrite ttl a -":                                         `"-" is no TTL in seconds such as 30, 30-300, 30- or -300`,
		"rewrite ttl a 60-30":                                     "is no TTL",
		"rewrite ttl a 4294967296":                                "is no TTL",
		"rewrite ttl a 1-2-3":                                     "is no TTL",
		"rewrite rcode a SERVFAIL BAD":                            `"BAD" is no rcode such as NOERROR, SERVFAIL, NXDOMAIN or REFUSED, or its number, 0 to 23`,
		"rewrite rcode a 24 0":                                    `"24" is no rcode`,
		"rewrite cname a":                                         "an argument is missing",
		"rewrite cname regex (a) {2}":                             "{2} names a group",
		"rewrite edns0":                                           "an argument is missing; write: rewrite [continue|stop] edns0 local|nsid|subnet set|append|replace|unset",
		"rewrite edns0 local add 1 a":                             `unknown action "add"; allowed: append, replace, set, unset`,
		"rewrite edns0 local set 0xffee":                          "an argument is missing; write: rewrite [continue|stop] edns0 local set|append|replace CODE DATA|{VARIABLE} [revert]",
		"rewrite edns0 local set 0xffee a b":                      `"b" is one argument too many`,
		"rewrite edns0 local set 65536 a":                         `"65536" is no code of an EDNS option such as 0xffee`,
		"rewrite edns0 local set 1 0xabc":                         `"0xabc" is no text in hexadecimal; write two digits for each byte`,
		"rewrite edns0 local set 1 " + strings.Repeat("a", 513):   "the data have 513 bytes; allowed: up to 512",
		"rewrite edns0 local set 1 {client}":                      `unknown variable "{client}"`,
		"rewrite edns0 local set 1 {/x}":                          `unknown variable "{/x}"`,
		"rewrite edns0 nsid set a":                                `"a" is one argument too many; write: rewrite [continue|stop] edns0 nsid set|append|replace [revert]`,
		"rewrite edns0 subnet set 24":                             "an argument is missing; write: rewrite [continue|stop] edns0 subnet set|append|replace BITS4 BITS6 [revert]",
		"rewrite edns0 subnet set 33 56":                          "33 is out of range; allowed: 0 to 32",
		"rewrite edns0 subnet set 24 129":                         "129 is out of range; allowed: 0 to 128",
		"rewrite edns0 subnet unset 24 56":                        `"24" is one argument too many; write: rewrite [continue|stop] edns0 subnet unset`,
		"rewrite edns0 loc unset":                                 `unknown option "loc"`,
		"rewrite edns0 local unset":                               "an argument is missing",
		"rewrite edns0 local unset x":                             `"x" is no code of an EDNS option such as 0xffee`,
		"rewrite name a b {\nanswer auto\n}":                      "a rule that is whole takes no block in braces",
		"rewrite stop {\nname a b {\nc\n}\n}":                     "takes no block in braces",
		strings.Repeat("rewrite ttl a 1\n", 1001):                 "a block has more than 1000 rewrites",

		"template":                    "an argument is missing after \"template\"; write: template CLASS TYPE [ZONES…]",
		"template XX A":               `"XX" is no class of DNS`,
		"template CH TXT":             "only the class IN is served",
		"template IN B":               `"B" is no type of DNS such as A, AAAA or MX, or ANY for all`,
		"template IN A {\nmatch (\n}": "template match: \"(\" is no regular expression",
		"template IN A {\nanswer \"{{ .Name\"\n}":                            "is no template of Go's text/template",
		"template IN A {\nanswer \"{{ foo }}\"\n}":                           `function "foo" not defined`,
		"template IN A {\nrcode X\n}":                                        `"X" is no rcode`,
		"template IN A {\nederror x\n}":                                      `"x" is not a whole number`,
		"template IN A {\nederror 1 \"" + strings.Repeat("x", 101) + "\"\n}": "the text has 101 bytes; allowed: up to 100",
		"template IN A {\nexpr 1 + 1\n}":                                     `"1 + 1": expected bool, but got int`,
		"template IN A {\nexpr n > 1\nvar n 1\n}":                            `"n > 1": unknown name n`,
		"template IN A {\nvar name 1\n}":                                     `"1": the name "name" is reserved`,
		"template IN A {\nvar a 1\nvar a 2\n}":                               `template var: "2": the variable "a" is set already; give this one another name`,
		"template IN A {\n" + strings.Repeat("expr true\n", 33) + "}":        "the template has more than 32 variables and expressions",
		"template IN A {\nansewr x\n}":                                       `unknown option "ansewr" (did you mean "answer"?)`,
		"template IN A {\nanswer" + strings.Repeat(" x", 1001) + "\n}":       "a template has more than 1000 records in a section",
		strings.Repeat("template IN A\n", 1001):                              "a block has more than 1000 templates",
	} {
		_, err := Parse(Source{Text: []byte(". {\n" + text + "\n}\n")})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%.80s: %.300v, want %s", text, err, want)
		}
	}
}

func TestTemplate(t *testing.T) {
	got := one(t, "template", `template IN A a.test B.test {
match ^a b$
match c
answer "{{ .Name }} 60 IN A 192.0.2.1" second
additional third
authority fourth
rcode nxdomain
ederror 21 "not here"
fallthrough c.test
upstream
}
template any ANY`).(*Template)
	list := got.All()
	if len(list) != 2 {
		t.Fatalf("%d templates", len(list))
	}
	first, second := list[0], list[1]
	var patterns []string
	for _, re := range first.Match {
		patterns = append(patterns, re.String())
	}
	if diff := cmp.Diff([]string{"^a", "b$", "c"}, patterns); diff != "" {
		t.Errorf("patterns (-want +got):\n%s", diff)
	}
	if n := [3]int{len(first.Answer), len(first.Additional), len(first.Authority)}; n != [3]int{2, 1, 1} {
		t.Errorf("%v records", n)
	}
	if first.Type != dns.TypeA || first.Rcode != wire.NXDomain || *first.EDE != (ExtendedError{21, "not here"}) {
		t.Errorf("got %+v", first)
	}
	if diff := cmp.Diff([][]wire.Name{names(t, "a.test", "b.test"), names(t, "c.test")}, [][]wire.Name{first.Zones, first.Fallthrough.Zones}); diff != "" {
		t.Errorf("zones (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&Template{Type: dns.TypeANY, Zones: names(t, "example.org")}, second); diff != "" {
		t.Errorf("the defaults (-want +got):\n%s", diff)
	}
	if (*Template)(nil).All() != nil {
		t.Error("templates of none")
	}
}
