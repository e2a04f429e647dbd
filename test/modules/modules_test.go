package modules_test

import (
	"io/fs"
	"path/filepath"
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
	var all []string // directories with a go.mod; a module comes before those in its directory
	tested := make(map[string]bool)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || strings.HasPrefix(name, ".") && rel != "."):
			return filepath.SkipDir
		case name == "go.mod":
			all = append(all, filepath.Dir(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || rel != dir && slices.Contains(all, rel)):
				return filepath.SkipDir
			case strings.HasSuffix(path, "_test.go"):
				tested[dir] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, dir := range all {
		if tested[dir] {
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
