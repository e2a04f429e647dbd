package docs

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update makes the tests write the generated pages, and generated parts of pages, instead of
// comparing them.
var update = flag.Bool("update", false, "write the generated pages and parts of pages")

// generated compares the part of a page between the lines "<!-- begin generated: NAME -->" and
// "<!-- end generated -->" with text, or writes it with -update.
func generated(t *testing.T, page, name, text string) {
	t.Helper()
	old, root := document(t, page)
	begin := "<!-- begin generated: " + name + " -->\n"
	head, rest, ok := strings.Cut(old, begin)
	part, tail, closed := strings.Cut(rest, "<!-- end generated -->")
	if !ok || !closed {
		t.Fatalf("%s has no part between %q and <!-- end generated -->", page, begin)
	}
	text = "\n" + strings.Trim(text, "\n") + "\n\n"
	compare(t, root, page, part, text, head+begin+text+"<!-- end generated -->"+tail)
}

// compare compares the generated part of a page with what it should be, or writes the page.
func compare(t *testing.T, root, page, got, want, whole string) {
	t.Helper()
	if got == want {
		return
	}
	if !*update {
		name, _, _ := strings.Cut(t.Name(), "/")
		t.Errorf("%s differs from the code; run go test ./test/docs -run '^%s$' -update (-want +got):\n%s", page, name, cmp.Diff(want, got))
		return
	}
	if err := os.WriteFile(filepath.Join(root, page), []byte(whole), 0o644); err != nil {
		t.Fatal(err)
	}
}
