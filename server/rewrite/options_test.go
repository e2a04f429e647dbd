package rewrite_test

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/rewrite"
)

// fakeEnv is a request of client at server over UDP.
type fakeEnv struct {
	client, server netip.AddrPort
	metadata       map[string]string
}

func (e *fakeEnv) Client() netip.AddrPort      { return e.client }
func (e *fakeEnv) Server() netip.AddrPort      { return e.server }
func (e *fakeEnv) Proto() string               { return "udp" }
func (e *fakeEnv) Metadata(name string) string { return e.metadata[name] }

// env is the request of tests that look at nothing of it.
var env = &fakeEnv{
	client: netip.MustParseAddrPort("192.0.2.33:4660"), server: netip.MustParseAddrPort("192.0.2.53:53"),
	metadata: map[string]string{"kubernetes/client-namespace": "team-A", "x/dots": "a.b", "x/bad": "a..b"},
}

// withOptions returns a query for name with options, as pairs of code and data in hexadecimal.
func withOptions(t testing.TB, name string, options map[uint16]string) *wire.Query {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	m.SetEdns0(1232, false)
	for _, code := range []uint16{dns.EDNS0NSID, dns.EDNS0SUBNET, dns.EDNS0COOKIE, 65518, 65519} {
		if text, ok := options[code]; ok {
			data, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: code, Data: data})
		}
	}
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

// TestOptions: the options that upstreams get, by the rules and those of the client.
func TestOptions(t *testing.T) {
	v4 := env
	v6 := &fakeEnv{client: netip.MustParseAddrPort("[2001:db8:1:2:3:4:5:6%eth0]:53"), server: netip.MustParseAddrPort("[2001:db8::53]:853")}
	mapped := &fakeEnv{client: netip.MustParseAddrPort("[::ffff:192.0.2.33]:53"), server: netip.MustParseAddrPort("[::]:53")}
	for _, tt := range []struct {
		name, rules string
		client      map[uint16]string
		env         *fakeEnv
		want        string // in hexadecimal, "none" if no rule matches
	}{
		{"a text", "edns0 local set 0xffee abcd", nil, v4, "ffee0004" + "61626364"},
		{"hexadecimal", "edns0 LOCAL Set 65518 0x00ff", nil, v4, "ffee0002" + "00ff"},
		{"no data", "edns0 local set 0xffee 0x", nil, v4, "ffee0000"},
		{"set replaces", "edns0 local set 0xffee abcd", map[uint16]string{65518: "0102"}, v4, "ffee0004" + "61626364"},
		{"append", "edns0 local append 0xffee abcd", nil, v4, "ffee0004" + "61626364"},
		{"append where there is one", "edns0 local append 0xffee abcd", map[uint16]string{65518: "0102"}, v4, "ffee0002" + "0102"},
		{"replace", "edns0 local replace 0xffee abcd", map[uint16]string{65518: "0102"}, v4, "ffee0004" + "61626364"},
		{"replace where there is none", "edns0 local replace 0xffee abcd", map[uint16]string{65519: "0102"}, v4, "none"},
		{"unset", "edns0 local unset 0xffee", map[uint16]string{65518: "0102"}, v4, ""},
		{"unset where there is none", "edns0 local unset 0xffee", nil, v4, ""},
		{"revert", "edns0 local set 0xffee abcd revert", nil, v4, "ffee0004" + "61626364"},
		{"two", "continue edns0 local set 0xffee ab;edns0 local set 0xffef c", nil, v4, "ffee0002" + "6162" + "ffef0001" + "63"},
		{"stop", "edns0 local set 0xffee ab;edns0 local set 0xffef c", nil, v4, "ffee0002" + "6162"},
		{"what doesn't match does not stop", "edns0 local replace 0xffee ab;edns0 local set 0xffef c", nil, v4, "ffef0001" + "63"},
		{"a later rule", "continue edns0 local set 0xffee ab;edns0 local replace 0xffee cdef", nil, v4, "ffee0004" + "63646566"},
		{"unset again", "continue edns0 local set 0xffee ab;continue edns0 local set 0xffef c;edns0 local unset 0xffee", nil, v4, "ffef0001" + "63"},
		{"others stay behind", "edns0 local set 0xffee ab", map[uint16]string{65519: "01", dns.EDNS0COOKIE: "0102030405060708"}, v4, "ffee0002" + "6162"},
		{"unset once is not taken over again", "continue edns0 local unset 0xffee;edns0 local append 0xffee ab", map[uint16]string{65518: "01"}, v4, "ffee0002" + "6162"},
		{"qname", "edns0 local set 0xffee {qname}", nil, v4, "ffee0007" + hex.EncodeToString([]byte("a.test."))},
		{"qname behind a rule", "continue name a.test bb.test;edns0 local set 0xffee {qname}", nil, v4, "ffee0008" + hex.EncodeToString([]byte("bb.test."))},
		{"qtype", "edns0 local set 0xffee {qtype}", nil, v4, "ffee0002" + "0001"},
		{"qtype behind a rule", "continue type A TXT;edns0 local set 0xffee {qtype}", nil, v4, "ffee0002" + "0010"},
		{"client_ip", "edns0 local set 0xffee {client_ip}", nil, v4, "ffee0004" + "c0000221"},
		{"client_ip, IPv6", "edns0 local set 0xffee {client_ip}", nil, v6, "ffee0010" + "20010db8000100020003000400050006"},
		{"client_ip, mapped", "edns0 local set 0xffee {client_ip}", nil, mapped, "ffee0004" + "c0000221"},
		{"client_port", "edns0 local set 0xffee {client_port}", nil, v4, "ffee0002" + "1234"},
		{"protocol", "edns0 local set 0xffee {protocol}", nil, v4, "ffee0003" + "756470"},
		{"server_ip", "edns0 local set 0xffee {server_ip}", nil, v4, "ffee0004" + "c0000235"},
		{"server_ip, IPv6", "edns0 local set 0xffee {server_ip}", nil, v6, "ffee0010" + "20010db8000000000000000000000053"},
		{"server_ip of another family", "edns0 local set 0xffee {server_ip}", nil, mapped, "none"},
		{"server_port", "edns0 local set 0xffee {server_port}", nil, v6, "ffee0002" + "0355"},
		{"metadata", "edns0 local set 0xffee {kubernetes/client-namespace}", nil, v4, "ffee0006" + hex.EncodeToString([]byte("team-A"))},
		{"metadata without a value", "edns0 local set 0xffee {kubernetes/client-namespace};edns0 local set 0xffef c", nil, v6, "ffef0001" + "63"},
		{"nsid", "edns0 nsid set", nil, v4, "00030000"},
		{"nsid, replace", "edns0 nsid replace", map[uint16]string{dns.EDNS0NSID: "01"}, v4, "00030000"},
		{"nsid, replace where there is none", "edns0 nsid replace", nil, v4, "none"},
		{"nsid, unset", "edns0 nsid unset", map[uint16]string{dns.EDNS0NSID: ""}, v4, ""},
		{"subnet", "edns0 subnet set 24 56", nil, v4, "00080007" + "00011800" + "c00002"},
		{"subnet, odd", "edns0 subnet set 27 56 revert", nil, v4, "00080008" + "00011b00" + "c0000220"},
		{"subnet, nothing", "edns0 subnet set 0 0", nil, v4, "00080004" + "00010000"},
		{"subnet, IPv6", "edns0 subnet set 24 56", nil, v6, "0008000b" + "00023800" + "20010db8000100"},
		{"subnet, mapped", "edns0 subnet set 32 128", nil, mapped, "00080008" + "00012000" + "c0000221"},
		{"subnet, append", "edns0 subnet append 24 56", map[uint16]string{dns.EDNS0SUBNET: "00010800" + "0a"}, v4, "00080005" + "00010800" + "0a"},
		{"subnet, replace", "edns0 subnet replace 24 56", map[uint16]string{dns.EDNS0SUBNET: "00010800" + "0a"}, v4, "00080007" + "00011800" + "c00002"},
		{"subnet, unset", "edns0 subnet unset", map[uint16]string{dns.EDNS0SUBNET: "00010800" + "0a"}, v4, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c rewrite.Change
			got := "none"
			if matched, err := c.Apply(parse(t, strings.Split(tt.rules, ";")...), withOptions(t, "A.test.", tt.client), tt.env); err != nil {
				t.Fatal(err)
			} else if matched {
				got = hex.EncodeToString(c.Options())
			}
			if got != tt.want {
				t.Errorf("options %s, want %s", got, tt.want)
			}
			if c.Uncached() != strings.Contains(tt.rules, "{client_port}") {
				t.Errorf("uncached is %t", c.Uncached())
			}
		})
	}
}

// TestOptionsAgain: the options of one query are gone at the next.
func TestOptionsAgain(t *testing.T) {
	var c rewrite.Change
	if _, err := c.Apply(parse(t, "edns0 local set 1 {client_port}"), query(t, "a.", dns.TypeA), env); err != nil || len(c.Options()) == 0 || !c.Uncached() {
		t.Fatalf("options %x, %v", c.Options(), err)
	}
	if matched, err := c.Apply(parse(t, "name b. c."), query(t, "a.", dns.TypeA), env); matched || err != nil || len(c.Options()) > 0 || c.Uncached() {
		t.Errorf("matched %t, %v, options %x", matched, err, c.Options())
	}
}

// TestOptionsBounded: too many bytes of options are an error, whoever sends them.
func TestOptionsBounded(t *testing.T) {
	var c rewrite.Change
	large := strings.Repeat("a", 512)
	rules := parse(t, "continue edns0 local set 1 "+large, "edns0 local set 2 "+large)
	if _, err := c.Apply(rules, query(t, "a.", dns.TypeA), env); !errors.Is(err, rewrite.ErrOptions) {
		t.Errorf("error %v for two large options", err)
	}
	client := map[uint16]string{65518: strings.Repeat("00", 1000)}
	if _, err := c.Apply(parse(t, "edns0 local append 0xffee x"), withOptions(t, "a.", client), env); !errors.Is(err, rewrite.ErrOptions) {
		t.Errorf("error %v for a large option of the client", err)
	}
	if _, err := c.Apply(parse(t, "edns0 local append 0xffef x"), withOptions(t, "a.", client), env); err != nil {
		t.Errorf("error %v for an option that no rule is about", err)
	}
}

// TestMetadataNames: what names a rule with `metadata` makes. "" means that it does not match, "-" that the name
// is invalid.
func TestMetadataNames(t *testing.T) {
	for rules, want := range map[string]string{
		`name regex ^([^.]+)\.test\.$ {1}.{kubernetes/client-namespace}.svc metadata`: "www.team-a.svc.",
		`name regex ^([^.]+)\.test\.$ {1}.{x/dots}.SVC. metadata answer auto`:         "www.a.b.svc.",
		`name regex ^([^.]+)\.test\.$ {0}{1}.x metadata`:                              "www.test.www.x.",
		`name regex ^(x)?www\.test\.$ {1}.x metadata`:                                 "-",
		`name regex ^(x)?www\.test\.$ {1}y.x metadata`:                                "y.x.",
		`name regex www {x/none}.svc metadata`:                                        "",
		`name regex www {X/dots}.svc metadata`:                                        "",
		`name regex other {x/dots}.svc metadata`:                                      "",
		`name regex www {x/bad}.svc metadata`:                                         "-",
		`stop name regex www {x/none}.svc metadata;name www.test b.test`:              "b.test.",
	} {
		var c rewrite.Change
		got := ""
		switch matched, err := c.Apply(parse(t, strings.Split(rules, ";")...), query(t, "www.test.", dns.TypeA), env); {
		case err != nil:
			got = "-"
		case matched:
			got = text(c.Name())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rules, diff)
		}
	}
	var c rewrite.Change
	if _, err := c.Apply(parse(t, `name regex ^(.*)\.test\.$ {1}.{x/dots}.svc metadata answer auto`), query(t, "www.test.", dns.TypeA), env); err != nil {
		t.Fatal(err)
	}
	if got := text(c.Owner(wireName(t, "www.a.b.svc."))); got != "www.test." {
		t.Errorf("the reply's owner becomes %s", got)
	}
}
