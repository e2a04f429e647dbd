// These tests use maxText, which is not exported.

package expression

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// query is a query as a test wants it.
type query struct {
	name, qtype    string
	client, server netip.AddrPort
	do             bool
}

func (q *query) Type() string           { return q.qtype }
func (q *query) Name() string           { return q.name }
func (q *query) Class() string          { return "IN" }
func (q *query) Proto() string          { return "udp" }
func (q *query) Size() int              { return 40 }
func (q *query) Bufsize() int           { return 1232 }
func (q *query) ID() int                { return 7 }
func (q *query) Opcode() int            { return 0 }
func (q *query) DO() bool               { return q.do }
func (q *query) Client() netip.AddrPort { return q.client }
func (q *query) Server() netip.AddrPort { return q.server }

func (q *query) Metadata(name string) string {
	if name == "kubernetes/client-namespace" {
		return "shop"
	}
	return ""
}

func plain() *query {
	return &query{
		name: "abc.x.example.com.", qtype: "A", do: true,
		client: netip.MustParseAddrPort("[::ffff:192.0.2.1]:5353"), server: netip.MustParseAddrPort("[fe80::1%eth0]:53"),
	}
}

func TestHolds(t *testing.T) {
	for text, want := range map[string]bool{
		"type() in ['A', 'AAAA']":                           true,
		"type() == 'MX'":                                    false,
		`name() matches '^abc\\..*\\.example\\.com\\.$'`:    true,
		"incidr(client_ip(), '192.0.2.0/24')":               true,
		"incidr(client_ip(), '192.0.3.0/24')":               false,
		"incidr('::ffff:10.0.0.1', '10.0.0.0/8')":           true,
		"incidr('2001:db8::1', '2001:DB8::/32')":            true,
		"client_ip() == '192.0.2.1' && port() == '5353'":    true,
		"server_ip() == 'fe80::1'":                          true,
		"server_port() == '53'":                             true,
		"class() == 'IN' && proto() == 'udp'":               true,
		"size() == 40 and bufsize() == 1232":                true,
		"id() % 4 == 3 && opcode() == 0 && do()":            true,
		"not do()":                                          false,
		"metadata('view/name') == ''":                       true,
		"metadata('kubernetes/client-namespace') == 'shop'": true,
		"name() endsWith 'example.com.' ? true : false":     true,
		// What fails is not true.
		"incidr('nobody', '10.0.0.0/8')":          false,
		"incidr('10.0.0.1', '10.0.0.0')":          false,
		"!incidr('10.0.0.1', '10.0.0.0')":         false,
		"len(filter(1..1000000, # > 1)) > 0":      false, // too much memory
		"len(map(1..9000, {1..9000})) > 0":        false,
		"len(1..20000) > 0":                       false,
		"[true][id()]":                            false, // out of bounds
		"all(['A', 'AAAA'], # startsWith type())": true,
	} {
		e, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for range 2 {
			if got := e.Eval(plain()); got != want {
				t.Errorf("%s is %v", text, got)
			}
		}
		if e.String() != text {
			t.Errorf("%s became %s", text, e)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "unexpected token EOF",
		"invalid expression":  "unexpected token Identifier(\"expression\") (1:9)",
		"1":                   "expected bool, but got int",
		"type()":              "expected bool, but got string",
		"nosuch() == 1":       "unknown name nosuch (1:1)",
		"incidr(client_ip())": "not enough arguments to call incidr (1:1)",
		"name() matches '('":  "error parsing regexp: missing closing ): `(` (1:8)",
		"do() || " + strings.Repeat("x", maxText): "the expression is longer than 8192 bytes",
	} {
		if _, err := Parse(text); err == nil || err.Error() != want {
			t.Errorf("%.40s: %v\nwant %s", text, err, want)
		}
	}
}

// TestTogether: one expression may be asked by many at once, of different queries.
func TestTogether(t *testing.T) {
	e, err := Parse("name() == 'a.' && incidr(client_ip(), '10.0.0.0/8')")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			q := plain()
			q.client = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10 + byte(i%2), 0, 0, 1}), 1)
			q.name = "a."
			for range 500 {
				if e.Eval(q) != (i%2 == 0) {
					t.Errorf("wrong for %s", q.client)
					return
				}
			}
		})
	}
	all.Wait()
}

// FuzzParse: no text makes Parse or Holds panic, and what holds does so again.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"do()", "name() matches '^a'", "[1,2][id()] == 1", "incidr(client_ip(), '10.0.0.0/8') || type() in ['A']", "1..3 == [1,2,3]", "let x = id(); x > 1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		q := plain()
		if first := e.Eval(q); first != e.Eval(q) && !strings.Contains(text, "now") {
			t.Errorf("%q is true and false", text)
		}
	})
}

func BenchmarkHolds(b *testing.B) {
	e, err := Parse("incidr(client_ip(), '10.0.0.0/24')")
	if err != nil {
		b.Fatal(err)
	}
	q := plain()
	b.ReportAllocs()
	for b.Loop() {
		e.Eval(q)
	}
}
