package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/ca"
)

// block parses a block of directives.
func block(text string) (*config.Block, *config.Config, error) {
	c, err := config.Parse(config.Source{Text: []byte(". {\n" + text + "\n}\n")})
	if err != nil {
		return nil, nil, err
	}
	return c.Blocks[0], c, nil
}

// TestHeader: the last line for a flag counts.
func TestHeader(t *testing.T) {
	for _, tt := range []struct {
		text string
		want config.Header
	}{
		{"response set ra", config.Header{Response: config.HeaderFlags{Set: wire.FlagRA}}},
		{"response set ra aa\nresponse clear rd", config.Header{Response: config.HeaderFlags{Set: wire.FlagRA | wire.FlagAA, Clear: wire.FlagRD}}},
		{"query Clear RD\nquery set rd", config.Header{Query: config.HeaderFlags{Set: wire.FlagRD}}},
		{"query set aa rd\nresponse set aa\nquery clear rd aa", config.Header{Query: config.HeaderFlags{Clear: wire.FlagRD | wire.FlagAA}, Response: config.HeaderFlags{Set: wire.FlagAA}}},
	} {
		b, _, err := block("header {\n" + tt.text + "\n}")
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if diff := cmp.Diff(&tt.want, b.Header); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
	}
}

// TestRoot: relative paths start at the root, absolute ones and those of other blocks don't.
func TestRoot(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"root " + dir + "\nhosts h":         filepath.Join(dir, "h"),
		"hosts ../h\nroot " + dir + "/sub":  filepath.Join(dir, "h"),
		"root " + dir + "\nhosts /h":        "/h",
		"root " + dir + "\nhosts":           "/etc/hosts",
		"hosts h\n}\na.test {\nroot " + dir: "h",
	} {
		b, _, err := block(text)
		if err != nil || b.Hosts.File != want {
			t.Errorf("%q: %v, want %s; %v", text, b, want, err)
		}
	}
	if _, c, err := block("root " + dir + "/none"); err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "there is no directory "+dir+"/none") {
		t.Errorf("a directory that does not exist: %+v, %v", c, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := block("root " + file); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a file: %v", err)
	}
}

// TestRootOfCertificates: the directives whose certificates CoreDNS looks for below `root`. Those of dnstap
// are not.
func TestRootOfCertificates(t *testing.T) {
	dir := t.TempDir()
	authority := ca.ForTest(t)
	authority.ServerFiles(t, dir, "a", time.Now().Add(time.Hour))
	authority.RootFile(t, dir)
	for text, want := range map[string]string{
		"grpc . 192.0.2.1 {\ntls cert.pem key.pem ca.pem\n}":               "",
		"grpc . 192.0.2.1 {\ntls other.pem\n}":                             `can't read "` + dir + `/other.pem"`,
		"forward . tls://192.0.2.1 {\ntls ca.pem\n}":                       "",
		"tls cert.pem key.pem ca.pem":                                      "",
		"dnstap listen tls://:6000 {\ntls cert.pem key.pem\n}":             "there is no file cert.pem",
		"dnstap listen tls://:6000 {\ntls " + dir + "/cert.pem key.pem\n}": "there is no file key.pem",
	} {
		_, _, err := block("root " + dir + "\n" + text)
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
