// These tests use expandName and readBudget, which are not exported.

package wire

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestAppendName(t *testing.T) {
	const label = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	longest := strings.Repeat(label+".", 3) + label[2:] + "."
	for text, want := range map[string]string{
		".": ".", "a.": "a.", "a": "a.", "A.b.": "A.b.", `a\.b.`: `a\.b.`, `\065.`: "A.", `\000.`: `\000.`, `a\@b.`: `a\@b.`, `\a`: "a.", "@": `\@.`,
		"": "-", "..": "-", ".a": "-", "a..": "-", "a..b": "-", `a\`: "-", `\256.`: "-", label + ".": label + ".", label + "a.": "-",
		longest: longest, "a" + longest: "-", `a\..`: `a\..`,
	} {
		b, ok := AppendName([]byte("x"), []byte(text))
		got := "-"
		if ok {
			got = string(AppendText(nil, b[1:]))
		}
		if got != want || b[0] != 'x' || !ok && len(b) != 1 {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// FuzzText: a name's text is miekg/dns's, and leads back to the name; what is a name is
// what [ParseName] says is one.
func FuzzText(f *testing.F) {
	f.Add([]byte("\x01a\x03b.c\x00"), `a.b\.c`)
	f.Add([]byte("\x04\x00 @\xff\x00"), `\000\032`)
	f.Add([]byte("\x00"), ".")
	f.Fuzz(func(t *testing.T, name []byte, text string) {
		if n, end := expandName(make([]byte, MaxName), name, 0, new(readBudget)); n == len(name) && end == n {
			got := AppendText(nil, name)
			want, _, err := dns.UnpackDomainName(name, 0)
			if err != nil || want != string(got) {
				t.Fatalf("%q is %q, miekg/dns says %q, %v", name, got, want, err)
			}
			if back, ok := AppendName(nil, got); !ok || string(back) != string(name) {
				t.Fatalf("%q leads to %q", got, back)
			}
		}
		b, ok := AppendName(nil, []byte(text))
		n, err := ParseName(text)
		if ok != (err == nil) || ok && (len(b) != len(n) || !EqualNames(b, []byte(n))) {
			t.Fatalf("%q is %q, %t; ParseName says %q, %v", text, b, ok, n, err)
		}
	})
}
