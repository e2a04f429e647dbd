package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/worst"
)

// TestThreatModel: each test that the threat model and the cases of package worst name is
// there.
func TestThreatModel(t *testing.T) {
	text, root := document(t, "docs/threat-model.md")
	for _, c := range worst.Cases() {
		if c.Pinned != "" {
			text += "`" + c.Pinned + "`"
		}
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1)
	if len(named) < 20 {
		t.Fatalf("only %d tests are named", len(named))
	}
	var tests strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		tests.Write(source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range named {
		if !strings.Contains(tests.String(), "\nfunc "+m[1]+"(") {
			t.Errorf("there is no %s", m[1])
		}
	}
}
