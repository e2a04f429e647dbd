package config

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

func samePrefix() cmp.Option {
	return cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
}

func nets(list ...string) []netip.Prefix { return each(list, netip.MustParsePrefix) }

// TestStandaloneDirectives reads the directives that need no other part.
func TestStandaloneDirectives(t *testing.T) {
	zone := names(t, "example.org")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	acl := func(list ...ACLPolicy) *ACL { return &ACL{Rules: []ACLRule{{Zones: zone, Policies: list}}} }
	for _, tt := range []struct {
		name, directive, text string
		want                  any
	}{
		{"empty", "acl", "acl", acl()},
		{"bare action", "acl", "acl {\nblock\n}", acl(ACLPolicy{Action: ACLBlock})},
		{"all of it", "acl", "acl {\nallow type A aaaa TXT net 10.0.0.1/8 ::1\nfilter net 192.0.2.1 type *\ndrop type HTTPS\nBlock NET *\n}", acl(
			ACLPolicy{Action: ACLAllow, Types: []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeTXT}, Nets: nets("10.0.0.0/8", "::1/128")},
			ACLPolicy{Action: ACLFilter, Nets: nets("192.0.2.1/32")},
			ACLPolicy{Action: ACLDrop, Types: []uint16{65}},
			ACLPolicy{Action: ACLBlock},
		)},
		{"everything among others", "acl", "acl {\nallow net 10.0.0.0/8 * type A *\nallow type * net * type A net ::/0\n}", acl(ACLPolicy{}, ACLPolicy{})},
		{"IPv4 in IPv6", "acl", "acl {\nallow net ::ffff:10.1.2.3 ::ffff:10.0.0.0/104 fe80::1%eth0\n}", acl(
			ACLPolicy{Nets: nets("10.1.2.3/32", "10.0.0.0/8", "fe80::1/128")})},
		{"twice", "acl", "acl a.test 192.0.2.0/24 {\nallow\n}\nacl {\nblock\n}", &ACL{Rules: []ACLRule{
			{Zones: names(t, "a.test", "2.0.192.in-addr.arpa"), Policies: []ACLPolicy{{}}},
			{Zones: zone, Policies: []ACLPolicy{{Action: ACLBlock}}},
		}}},

		{"rate", "client_limit", "client_limit 100", &ClientLimit{Rate: 100, Burst: 100}},
		{"burst", "client_limit", "client_limit 100 20", &ClientLimit{Rate: 100, Burst: 20}},
		{"action", "client_limit", "client_limit 100 truncate", &ClientLimit{Rate: 100, Burst: 100, Action: LimitTruncate}},
		{"all of it", "client_limit", "client_limit 1000000 1 drop {\nexcept 10.0.0.1/8 ::1\nexcept 192.0.2.1\n}", &ClientLimit{
			Rate: 1_000_000, Burst: 1, Action: LimitDrop, Except: nets("10.0.0.0/8", "::1/128", "192.0.2.1/32"),
		}},

		{"default", "any", "any", &Switch{}},
		{"default", "minimal", "minimal", &Switch{}},
		{"default", "whoami", "whoami", &Switch{}},
		{"default", "local", "local", &Local{Prefix: true}},
		{"on", "local", "local {\nlocalhost_prefix on\n}", &Local{Prefix: true}},
		{"off", "local", "local {\nlocalhost_prefix off\n}", &Local{}},
		{"default", "nsid", "nsid", &NSID{ID: host}},
		{"words", "nsid", "nsid Use The Force", &NSID{ID: "Use The Force"}},

		{"default", "dns64", "dns64", &DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96")}},
		{"prefix", "dns64", "dns64 2001:db8:1:2:3::/64", &DNS64{Prefix: netip.MustParsePrefix("2001:db8:1:2::/64")}},
		{"options", "dns64", "dns64 {\nprefix 64:1337::/96\ntranslate_all\nallow_ipv4\n}", &DNS64{Prefix: netip.MustParsePrefix("64:1337::/96"), TranslateAll: true, AllowIPv4: true}},
		{"exceptions", "aaaa", "kubernetes cluster.local\naaaa auto {\nexcept a.test 10.0.0.0/8\nexcept b.test\n}", &AAAA{Except: names(t, "a.test", "10.in-addr.arpa", "b.test")}},
		{"prefix and options", "dns64", "dns64 64:1337::/96 {\ntranslate_all\n}", &DNS64{Prefix: netip.MustParsePrefix("64:1337::/96"), TranslateAll: true}},
	} {
		t.Run(tt.directive+" "+tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, one(t, tt.directive, tt.text), samePrefix()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStandaloneDirectiveErrors reads a directive at line 3 of a block.
func TestStandaloneDirectiveErrors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"client_limit", `3: client_limit: an argument is missing after "client_limit"; write: client_limit QPS [BURST] [refuse|truncate|drop]`},
		{"client_limit 0", `3: client_limit: "0" is not a number of queries; allowed: 1 to 1000000`},
		{"client_limit drop", `3: client_limit: "drop" is not a number of queries; allowed: 1 to 1000000`},
		{"client_limit 10 1000001", `3: client_limit: "1000001" is not a number of queries; allowed: 1 to 1000000`},
		{"client_limit 10 ignore", `3: client_limit: "ignore" is not a number of queries; allowed: 1 to 1000000`},
		{"client_limit 10 20 ignore", `3: client_limit: "ignore" is no action; give refuse, truncate or drop`},
		{"client_limit 10 drop 20", `3: client_limit: "20" follows the action; write: QPS [BURST] [refuse|truncate|drop]`},
		{"client_limit 10 20 drop 30", `3: client_limit: "30" is one argument too many after "client_limit"; write: client_limit QPS [BURST] [refuse|truncate|drop]`},
		{"client_limit 10 {\nexcept\n}", `4: client_limit: an argument is missing after "except"; write: except CIDRS…`},
		{"client_limit 10 {\nexcept eth0\n}", `4: client_limit except: "eth0" is not an address or a CIDR such as 10.0.0.0/8`},
		{"client_limit 10\nclient_limit 20", `4: client_limit: "client_limit" is in the block twice, first at Corefile:3; keep one`},
		{"acl a..b", `3: acl: "a..b" is not a zone: not a domain name: "a..b" has an empty label`},
		{"acl {\nblok\n}", `4: acl: unknown action "blok" (did you mean "block"?); allowed: allow, block, drop, filter`},
		{"acl {\nblock {\ntype A\n}\n}", `4: acl: "block" takes no block in braces; write: block [type QTYPES…] [net SOURCES…]`},
		{"acl {\nblock A\n}", `4: acl block: unknown word "A"; allowed: net, type`},
		{"acl {\nblock nets 10.0.0.0/8\n}", `4: acl block: unknown word "nets" (did you mean "net"?); allowed: net, type`},
		{"acl {\nblock type net 10.0.0.0/8\n}", `4: acl block: "type" needs a value; name some, or * for all`},
		{"acl {\nblock type AAAAA\n}", `4: acl block: "AAAAA" is not a type of records such as A, AAAA or TXT`},
		{"acl {\nallow net 10.0.0.0/33\n}", `4: acl allow: "10.0.0.0/33" is not an address or a CIDR such as 10.0.0.0/8`},
		{"acl {\nallow net eth0\n}", `4: acl allow: "eth0" is not an address or a CIDR such as 10.0.0.0/8`},
		{"acl {\nallow net ::ffff:0:0/95\n}", `4: acl allow: "::ffff:0:0/95" is not an address or a CIDR such as 10.0.0.0/8`},
		{"any x", `3: any: "x" is one argument too many after "any"; write: any`},
		{"any {\nx\n}", `4: any: unknown option "x": any takes no options`},
		{"minimal x", `3: minimal: "x" is one argument too many after "minimal"; write: minimal`},
		{"whoami x", `3: whoami: "x" is one argument too many after "whoami"; write: whoami`},
		{"local x", `3: local: "x" is one argument too many after "local"; write: local`},
		{"local {\nlocalhost_prefix maybe\n}", `4: local localhost_prefix: unknown value "maybe"; allowed: off, on`},
		{"local {\nlocalhost_prefx on\n}", `4: local: unknown option "localhost_prefx" (did you mean "localhost_prefix"?); allowed: localhost_prefix`},
		{"nsid " + strings.Repeat("x", wire.MaxNSID+1), `3: nsid: the identifier has 201 bytes, which is too much to send along with each reply; allowed: 200`},
		{`nsid ""`, `3: nsid: the identifier is empty; is an environment variable unset?`},
		{"aaaa\nkubernetes a.test", `3: aaaa: an argument is missing after "aaaa"; write: aaaa auto { except ZONES… }`},
		{"aaaa never\nkubernetes a.test", `3: aaaa: unknown mode "never"; allowed: auto`},
		{"aaaa auto {\nonly a.test\n}\nkubernetes a.test", `4: aaaa: unknown option "only"; allowed: except`},
		{"dns64 64:ff9b::/96 x", `3: dns64: "x" is one argument too many after "dns64"; write: dns64 [PREFIX]`},
		{"dns64 64:ff9b::/95", `3: dns64: "64:ff9b::/95" has a length that IPv4 addresses can't be put behind; allowed: 32, 40, 48, 56, 64, 96`},
		{"dns64 64:ff9b::", `3: dns64: "64:ff9b::" is not an IPv6 prefix such as 64:ff9b::/96`},
		{"dns64 {\nprefix 10.0.0.0/32\n}", `4: dns64 prefix: "10.0.0.0/32" is not an IPv6 prefix such as 64:ff9b::/96`},
		{"view", `3: view: an argument is missing after "view"; write: view NAME`},
		{"view a b", `3: view: "b" is one argument too many after "view"; write: view NAME`},
		{`view ""`, `3: view: the name is empty; is an environment variable unset?`},
		{"view a\nview b", `4: view: "view" is in the block twice, first at Corefile:3; keep one`},
		{"view a {\nexpr\n}", `4: view: an argument is missing after "expr"; write: expr EXPRESSION…`},
		{"view a {\nwhen x\n}", `4: view: unknown option "when"; allowed: expr`},
		{"view a {\nexpr name() ==\n}", `4: view expr: "name() ==" is not a boolean expression: unexpected token EOF (1:9)`},
		{"view a {\nexpr name()\n}", `4: view expr: "name()" is not a boolean expression: expected bool, but got string`},
		{"view a {\n" + strings.Repeat("expr do()\n", 33) + "}", `36: view expr: the view has more than 32 expressions; join some by &&`},
		{"dns64 {\ntranslate\n}", `4: dns64: unknown option "translate"; allowed: allow_ipv4, prefix, translate_all`},
	} {
		_, err := parse(t, "# none\nexample.org {\n"+tt.text+"\n}\n")
		if want := "Corefile:" + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s\nerror %v\nwant  %s", tt.text, err, want)
		}
	}
}

// TestViews: blocks of one zone differ in their views, and may be in any order.
func TestViews(t *testing.T) {
	c := mustParse(t, `a.test {
	view one {
		expr incidr(client_ip(), '10.0.0.0/8') # and
		expr type() in ['A', 'AAAA']
	}
}
a.test b.test {
	view two
}
a.test b.test {
	errors
}
`)
	var got []string
	for _, b := range c.Blocks {
		text := b.ViewName()
		if b.View != nil {
			for _, e := range b.View.When {
				text += "; " + e.String()
			}
		}
		got = append(got, text)
	}
	want := []string{"one; incidr(client_ip(), '10.0.0.0/8'); type() in ['A', 'AAAA']", "two", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		"a.test {\nview a\n}\na.test b.test {\nview a\n}\n":                          `Corefile:4: the zone a.test. on port 53 already has a view "a", in the block at Corefile:1; give this one another name`,
		"a.test {\nview a\n}\na.test {\n}\na.test {\n}\n":                            `Corefile:6: the zone a.test. on port 53 is already served by the block at Corefile:4; merge the two blocks, or bind them to different addresses`,
		"a.test {\nview a\n}\na.test:54 {\nview a\n}\n":                              "",
		"a.test {\nbind 192.0.2.1\nview a\n}\na.test {\nbind 192.0.2.2\nview a\n}\n": "",
	} {
		_, err := parse(t, text)
		if err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s\nerror %v\nwant  %s", text, err, want)
		}
	}
}
