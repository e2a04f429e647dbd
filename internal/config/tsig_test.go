package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestTSIG: keys of both sources and the types that must be signed.
func TestTSIG(t *testing.T) {
	dir := t.TempDir()
	text := "# ours\nkey \"File.test.\" {\n  algorithm hmac-sha256;\n  secret \"AAAA\"; // base64\n};\nkey other.test { secret BBBB; };\n"
	if err := os.WriteFile(filepath.Join(dir, "keys"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(Source{Text: []byte("a.test b.test {\nroot " + dir + "\ntsig {\nsecrets keys\nsecret KEY.test /w==\nrequire AXFR IXFR\n}\n}\nc.test {\ntsig d.c.test {\nsecret k AAAA\nrequire all\n}\n}\n")})
	if err != nil {
		t.Fatal(err)
	}
	name := func(s string) wire.Name {
		n, err := wire.ParseName(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	want := []*TSIG{
		{
			Zones: []wire.Name{name("a.test"), name("b.test")}, Types: []uint16{252, 251},
			Keys: wire.TSIGKeys{name("key.test"): {255}, name("file.test"): {0, 0, 0}, name("other.test"): {4, 16, 65}},
		},
		{Zones: []wire.Name{name("d.c.test")}, All: true, Keys: wire.TSIGKeys{name("k"): {0, 0, 0}}},
	}
	if d := cmp.Diff(want, []*TSIG{c.Blocks[0].TSIG, c.Blocks[1].TSIG}); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !slices.Contains(c.Files, filepath.Join(dir, "keys")) {
		t.Errorf("files %q, want the keys", c.Files)
	}
}

// TestTSIGErrors: what is wrong is named, and no error has a secret.
func TestTSIGErrors(t *testing.T) {
	const secret = "c2VjcmV0IHNlY3JldA"
	dir := t.TempDir()
	for text, want := range map[string]string{
		"secret k " + secret + "!":                            "the secret of the key k. is not valid base64",
		"secret k AAAA\nsecret K. AAAA":                       "the key k. is defined twice",
		"secret a..b AAAA":                                    "the name of a key is a domain name",
		"secret k " + strings.Repeat("AAAA", 200):             "has 600 bytes; allowed: up to 512",
		"require all MX":                                      "or `all` or `none` alone",
		"require MXX":                                         "is not a type of records",
		"require_opcode NOTIFY":                               "take it out; the agent answers no opcodes but QUERY",
		"secrets /no/such":                                    "mount the file, or name another one",
		"secrets $key k { secret " + secret:                   "line 1: no value and semicolon after `secret`",
		"secrets $key k { algorithm hmac-sha256; };":          `the key "k" has no secret`,
		"secrets $zone z {};":                                 "line 1: a statement that is not `key`",
		"secrets $key { secret " + secret + "; };":            "line 1: no name and opening brace after `key`",
		"secrets $key k { secret \"" + secret + "!\"; };":     "the secret of the key k. is not valid base64",
		"secrets $\nkey k { secret " + secret + "==\n; x; };": `the key "k" has no secret, or something else`,
	} {
		if line, file, ok := strings.Cut(text, "$"); ok {
			path := filepath.Join(dir, "keys")
			if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			text = line + path
		}
		_, err := Parse(Source{Text: []byte("a.test {\ntsig {\n" + text + "\n}\n}\n")})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
