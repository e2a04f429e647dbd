package filewatch_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/filewatch"
)

// TestCheck: a regular file within the bound is accepted, also behind a symbolic link; all else is an error that names it.
func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := path + "-link"
	if err := errors.Join(os.Truncate(path, 1<<20), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(filewatch.Check(path, 1<<20), filewatch.Check(link, 1<<20)); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(path, 1<<20+1); err != nil {
		t.Fatal(err)
	}
	if err := filewatch.Check(link, 1<<20); err == nil || !strings.Contains(err.Error(), link+": it is larger than 1 MiB") {
		t.Error(err)
	}
	if err := filewatch.Check(filepath.Dir(path), 1<<20); !errors.Is(err, filewatch.ErrNotRegular) {
		t.Error(err)
	}
	if err := filewatch.Check(path+"-gone", 1<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
