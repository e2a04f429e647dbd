package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// reply answers a query for x.test with the records, which go into the answer, and a SOA
// with the serial into the authority section.
func reply(t *testing.T, serial int, records ...string) *dns.Msg {
	t.Helper()
	q, _, err := parseQuery("udp 1232 x.test A")
	if err != nil {
		t.Fatal(err)
	}
	m := new(dns.Msg).SetReply(q)
	m.SetEdns0(1232, false)
	for _, text := range records {
		r, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		m.Answer = append(m.Answer, r)
	}
	soa, err := dns.NewRR(fmt.Sprintf("test. 20 SOA ns.test. host.test. %d 1 2 3 4", serial))
	if err != nil {
		t.Fatal(err)
	}
	m.Ns = []dns.RR{soa}
	return m
}

// TestNormalize holds what makes two replies different and what doesn't.
func TestNormalize(t *testing.T) {
	const a, b = "x.test. 30 A 192.0.2.1", "x.test. 30 A 192.0.2.2"
	ttl, want := normalize(reply(t, 1, a, b))
	if ttl != 30 {
		t.Errorf("the longest TTL is %d, want 30", ttl)
	}
	for _, tt := range []struct {
		name   string
		change func(m *dns.Msg) *dns.Msg
		same   bool
	}{
		{"the same", func(m *dns.Msg) *dns.Msg { return m }, true},
		{"another order", func(*dns.Msg) *dns.Msg { return reply(t, 1, b, a) }, true},
		{"another serial number", func(*dns.Msg) *dns.Msg { return reply(t, 2, a, b) }, true},
		{"another TTL", func(*dns.Msg) *dns.Msg { return reply(t, 1, a, "x.test. 7 A 192.0.2.2") }, true},
		{"another ID", func(m *dns.Msg) *dns.Msg { m.Id++; return m }, true},
		{"a record less", func(*dns.Msg) *dns.Msg { return reply(t, 1, a) }, false},
		{"a record twice", func(*dns.Msg) *dns.Msg { return reply(t, 1, a, b, b) }, false},
		{"another address", func(*dns.Msg) *dns.Msg { return reply(t, 1, a, "x.test. 30 A 192.0.2.3") }, false},
		{"another section", func(m *dns.Msg) *dns.Msg { m.Answer, m.Ns = m.Ns, m.Answer; return m }, false},
		{"another rcode", func(m *dns.Msg) *dns.Msg { m.Rcode = dns.RcodeNameError; return m }, false},
		{"aa", func(m *dns.Msg) *dns.Msg { m.Authoritative = true; return m }, false},
		{"tc", func(m *dns.Msg) *dns.Msg { m.Truncated = true; return m }, false},
		{"ra", func(m *dns.Msg) *dns.Msg { m.RecursionAvailable = true; return m }, false},
		{"another question", func(m *dns.Msg) *dns.Msg { m.Question[0].Name = "y.test."; return m }, false},
		{"no OPT", func(m *dns.Msg) *dns.Msg { m.Extra = nil; return m }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := normalize(tt.change(reply(t, 1, a, b))); (got == want) != tt.same {
				t.Errorf("alike: %t, want %t:\n%s\n%s", got == want, tt.same, got, want)
			}
		})
	}
}

func TestParseQuery(t *testing.T) {
	for _, line := range []string{"", "udp 0 x", "udp 0 x A more", "udp x x A", "udp 70000 x A", "udp 0 x NONE"} {
		if _, _, err := parseQuery(line); err == nil {
			t.Errorf("%q is taken for a query", line)
		}
	}
	q, proto, err := parseQuery("tcp 0 x.test A")
	if err != nil || proto != "tcp" || q.IsEdns0() != nil || q.Question[0].Name != "x.test." {
		t.Errorf("the query is %v over %s: %v", q, proto, err)
	}
}

func TestSummarize(t *testing.T) {
	denied := reply(t, 1)
	denied.Rcode = dns.RcodeNameError
	broken := reply(t, 1)
	broken.Rcode = dns.RcodeServerFailure
	for want, got := range map[string]string{
		"192.0.2.1 192.0.2.2": summarize(reply(t, 1, "x.test. 30 A 192.0.2.2", "x.test. 30 A 192.0.2.1"), nil),
		"192.0.2.1 y.test":    summarize(reply(t, 1, "x.test. 30 CNAME y.test.", "y.test. 30 A 192.0.2.1"), nil),
		"nodata":              summarize(reply(t, 1), nil),
		"none":                summarize(denied, nil),
		"SERVFAIL":            summarize(broken, nil),
		"failed":              summarize(nil, errors.New("no route")),
	} {
		if got != want {
			t.Errorf("the reply is %q in short, want %q", got, want)
		}
	}
}

// TestInvalidInput holds that a question that is none ends the program: the suite would
// otherwise take the answers for those of other questions.
func TestInvalidInput(t *testing.T) {
	for _, line := range []string{"host", "mx x.test"} {
		var out strings.Builder
		if err := run(t.Context(), []string{"go"}, strings.NewReader(line+"\n"), &out); err == nil {
			t.Errorf("%q is taken for a question and answered %q", line, &out)
		}
	}
	for _, args := range [][]string{nil, {"wire"}, {"until", "x", "y", "z"}, {"serve"}, {"visit", ":0", "x", "y", "z"}, {"else"}} {
		if err := run(t.Context(), args, strings.NewReader(""), new(strings.Builder)); err == nil {
			t.Errorf("%q is run", args)
		}
	}
}
