// These tests use newReadBudget and unpackName, which are not exported.

package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestParseName(t *testing.T) {
	label63 := strings.Repeat("a", 63)
	long := strings.Repeat(label63+".", 3) // 192 bytes in wire form
	tests := map[string]struct {
		text string
		want Name // empty: refused
	}{
		"the root":                 {".", Root},
		"one label":                {"a", "\x01a\x00"},
		"with the last dot":        {"a.b.", "\x01a\x01b\x00"},
		"in capitals":              {"WWW.Example", "\x03www\x07example\x00"},
		"not ASCII's capitals":     {"\xc4\xd6", "\x02\xc4\xd6\x00"},
		"a dot in a label":         {`a\.b.c`, "\x03a.b\x01c\x00"},
		"a dot at the end":         {`a\.`, "\x02a.\x00"},
		"a backslash":              {`a\\.b`, "\x02a\\\x01b\x00"},
		"digits":                   {`\000\255\065`, "\x03\x00\xffa\x00"},
		"a capital, escaped":       {`\A`, "\x01a\x00"},
		"a label of 63":            {label63, Name("\x3f" + label63 + "\x00")},
		"255 bytes":                {long + strings.Repeat("b", 61), Name(strings.Repeat("\x3f"+label63, 3) + "\x3d" + strings.Repeat("b", 61) + "\x00")},
		"256 bytes":                {long + strings.Repeat("b", 62), ""},
		"a label of 64":            {label63 + "a", ""},
		"a label of 64, in escape": {strings.Repeat(`\097`, 64), ""},
		"nothing":                  {"", ""},
		"two dots":                 {"a..b", ""},
		"a dot first":              {".a", ""},
		"only dots":                {"..", ""},
		"an escape cut short":      {`a\`, ""},
		"digits too large":         {`\256`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseName(tt.text)
			if tt.want == "" {
				if !errors.Is(err, ErrName) || got != "" {
					t.Errorf("got %q, error %v", got, err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, error %v, want %q", got, err, tt.want)
			}
		})
	}
}

// FuzzName compares with miekg/dns, and takes every name through String and back.
func FuzzName(f *testing.F) {
	for _, s := range []string{".", "a", "WWW.Example.", `a\.b.\000\255`, `\`, "a..b", strings.Repeat("a.", 128)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		if err != nil {
			if !errors.Is(err, ErrName) {
				t.Errorf("an error of its own: %v", err)
			}
			return
		}
		if back, err := ParseName(n.String()); err != nil || back != n {
			t.Errorf("%q: %q came back as %q, %v", s, n, back, err)
		}
		var buf [MaxName]byte
		left := newReadBudget(len(n))
		if used, end := unpackName(buf[:], []byte(n), 0, &left); left != newReadBudget(len(n)) || used != len(n) || end != len(n) || string(buf[:used]) != string(n) {
			t.Errorf("%q reads back as %q", n, buf[:used])
		}
		labels := 0
		for p := n; p != Root; p = p.Parent() {
			labels++
			if !n.Under(p) || p != n && p.Under(n) {
				t.Errorf("%q under %q: %v, above: %v", n, p, n.Under(p), p.Under(n))
			}
		}
		if !n.Under(Root) {
			t.Errorf("%q is not under the root", n)
		}
		var out [MaxName + 1]byte
		end, err := dns.PackDomainName(n.String(), out[:], 0, nil, false)
		if err != nil || string(out[:end]) != string(n) {
			t.Errorf("%q is %q to another, %v", n.String(), out[:end], err)
		}
		if got := dns.CountLabel(n.String()); got != labels {
			t.Errorf("%q has %d labels, to another %d", n, labels, got)
		}
	})
}

func TestUnder(t *testing.T) {
	for _, tt := range []struct {
		name, zone string
		want       bool
	}{
		{"a.example", "example", true}, {"example", "example", true}, {"example", "a.example", false},
		{"anexample", "example", false}, {"a.test", "example", false}, {".", ".", true}, {".", "example", false},
		{`a\007example`, "example", false}, {`x\.example`, "example", false},
	} {
		name, err := ParseName(tt.name)
		noError(t, err)
		zone, err := ParseName(tt.zone)
		noError(t, err)
		if got := name.Under(zone); got != tt.want {
			t.Errorf("%s under %s: %v", name, zone, got)
		}
	}
}

// TestParentDomain: names that fail together have one domain, and what follows a name does not count.
func TestParentDomain(t *testing.T) {
	for name, want := range map[string]string{
		"\x00":                            "\x00",
		"\x04host\x00":                    "\x00",
		"\x07printer\x03lan\x00":          "\x03lan\x00",
		"\x03www\x01a\x04test\x00":        "\x01a\x04test\x00",
		"\x01x\x03www\x01a\x04test\x00":   "\x01a\x04test\x00",
		"\x01y\x01x\x01a\x04test\x00\x00": "\x01a\x04test\x00",
	} {
		if got := ParentDomain([]byte(name)); string(got) != want {
			t.Errorf("the domain of %q is %q, want %q", name, got, want)
		}
	}
}
