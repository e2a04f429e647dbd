package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImportsBeside: relative imports of a template start beside the file that it is rendered to, those of imported
// files beside them.
func TestImportsBeside(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"template/extra/a.inc":         "hosts {\n192.0.2.1 beside.template.test\n}\n",
		"rendered/extra/a.inc":         "import more/b.inc\n",
		"rendered/extra/c.inc":         "import options\n",
		"rendered/more/b.inc":          "not this one\n",
		"rendered/zones.d/z.server":    "import ../options2\nexample.org {\nimport common\nimport extra/c.inc\n}\n",
		"rendered/zones.d/extra/c.inc": "loop\n",
		"rendered/options2":            "(common) {\nerrors\n}\n",
		"rendered/extra/more/b.inc":    "hosts {\n192.0.2.1 beside.conf.test\n}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, dir, name, text)
	}
	base, conf := filepath.Join(dir, "template/Corefile.base"), filepath.Join(dir, "rendered/Corefile")
	text := "import zones.d/*.server\n. {\nimport extra/a.*\nimport none/*\nwhoami\n}\n"
	c, err := Parse(Source{Path: base, Text: []byte(text), Options: Options{ImportsBeside: conf}})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Blocks) != 2 || c.Blocks[0].Loop == nil || c.Blocks[0].Errors == nil {
		t.Fatalf("blocks %+v", c.Blocks)
	}
	if h := c.Blocks[1].Hosts; h == nil || !slices.Equal(h.Inline, []string{"192.0.2.1 beside.conf.test"}) {
		t.Errorf("hosts %+v", h)
	}
	if b := c.Blocks[1]; b.File != base || b.Line != 2 {
		t.Errorf("block at %s:%d", b.File, b.Line)
	}
	if want := []string{filepath.Join(dir, "rendered/none/*")}; !slices.Equal(c.EmptyImports, want) {
		t.Errorf("empty imports %q, want %q", c.EmptyImports, want)
	}
	for _, tt := range []struct{ text, want string }{
		{". {\nimport extra/none\n}\n", base + `:2: can't import "extra/none": there is no snippet of this name, and no file ` + filepath.Join(dir, "rendered/extra/none")},
		{". {\nerrors\n", base + ":2: the file ends inside a block: a closing } is missing"},
	} {
		_, err := Parse(Source{Path: base, Text: []byte(tt.text), Options: Options{ImportsBeside: conf}})
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: error %v\nwant %s", tt.text, err, tt.want)
		}
	}
}
