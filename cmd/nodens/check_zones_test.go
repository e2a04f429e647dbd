package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestCheckZoneFiles: zone files are read; an error has their name and line, and those of auto are warnings.
func TestCheckZoneFiles(t *testing.T) {
	dir := t.TempDir()
	const good = "@ 60 SOA ns host 1 2 3 4 5\n"
	check.NoError(t, os.Mkdir(filepath.Join(dir, "zones"), 0o755))
	for name, text := range map[string]string{
		"good": good, "bad": good + "\nx 60 A y\n", "includes": good + "$INCLUDE bad\n", "empty": "; nothing\n", "zones/db.a.test": good, "zones/db.b.test": good + "x 60 A y\n",
	} {
		agenttest.WriteFile(t, filepath.Join(dir, name), text)
	}
	for _, tt := range []struct {
		text, want string // want with DIR
		code       int
	}{
		{"file good", "", exitOK},
		{"file bad", "DIR/bad:3: file: zone z.test.: bad A A", 1},
		{"file good a.z.test\nfile bad b.z.test", "DIR/bad:3: file: zone b.z.test.: bad A A", 1},
		{"file includes", "DIR/bad:3: file: zone z.test.: bad A A", 1},
		{"file empty", "DIR/empty: file: zone z.test.: it has no SOA record", 1},
		{"file none", "warning: DIR/Corefile:1: file: there is no file DIR/none; the names of z.test. are SERVFAIL until it is there", exitOK},
		{"file none {\nreload 0\n}", "DIR/none: file: zone z.test.: stat", 1},
		{"auto test {\ndirectory zones\n}", "warning: DIR/zones/db.b.test:2: auto: zone b.test.: bad A A", exitOK},
		{"auto test {\ndirectory nowhere\n}", "there is no directory DIR/nowhere", exitOK},
	} {
		conf := filepath.Join(dir, "Corefile")
		agenttest.WriteFile(t, conf, "z.test:5300 {\nroot "+dir+"\n"+tt.text+"\n}\n")
		code, out, stderr := outcome(t, "check", "-conf", conf)
		if want := strings.ReplaceAll(tt.want, "DIR", dir); code != tt.code || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: exit code %d, want %d, and %q in\n%s%s", tt.text, code, tt.code, want, out, stderr)
		}
		if code, out, _ := outcome(t, "check", conf); code != exitOK || strings.HasPrefix(tt.text, "file") && !strings.Contains(out, "not read here: "+dir) {
			t.Errorf("%s: as another machine's Corefile: exit code %d\n%s", tt.text, code, out)
		}
	}
}
