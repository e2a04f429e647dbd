package modules_test

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/modules"
	"github.com/nodens-dns/nodens/test/peer"
)

// TestTested: the modules of the repository that have test files are the ones that are listed.
func TestTested(t *testing.T) {
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "go.mod", "*/go.mod", "*_test.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	var want []string
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			continue
		}
		dir := path.Dir(file)
		for dir != "." && !slices.Contains(files, dir+"/go.mod") {
			dir = path.Dir(dir)
		}
		if !slices.Contains(want, dir) {
			want = append(want, dir)
		}
	}
	got := modules.Tested()
	if len(got) == 0 || got[0] != modules.Root {
		t.Errorf("%q does not begin with the repository's own module", got)
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("modules with tests (-want +got):\n%s", d)
	}
}
