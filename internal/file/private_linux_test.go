package file_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/file"
)

// odd makes what is no file of one's own at a path; kept is one that is.
var odd = map[string]struct {
	make func(path, kept string) error
	want string
}{
	"a folder":                 {func(path, _ string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
	"a pipe":                   {func(path, _ string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
	"a symbolic link":          {func(path, kept string) error { return os.Symlink(kept, path) }, "symbolic link"},
	"a symbolic link nowhere":  {func(path, kept string) error { return os.Symlink(kept+"-gone", path) }, "symbolic link"},
	"a device":                 {func(path, _ string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|3) }, "not a regular file"},
	"a socket without process": {func(path, _ string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) }, "not a regular file"},
}

// eachOdd makes each of odd in dir and gives it to check, with what its error must say.
func eachOdd(t *testing.T, dir, kept string, check func(name, path, want string)) {
	t.Helper()
	for name, c := range odd {
		path := filepath.Join(dir, name)
		if err := c.make(path, kept); errors.Is(err, syscall.EPERM) {
			continue // a device takes root
		} else if err != nil {
			t.Fatal(err)
		}
		check(name, path, c.want)
	}
}

// TestOpen: what this user alone may have written is opened, at once; all else is refused,
// with the reason.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	kept := write(t, filepath.Join(dir, "kept"), 0o600)
	f, err := file.Open(kept, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); string(text) != "kept" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	if _, err := file.Open(filepath.Join(dir, "gone"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	eachOdd(t, dir, kept, func(_, path, want string) { refused(t, path, 4, want) })
	refused(t, kept, 3, "4 bytes, at most 3 are allowed")
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		refused(t, write(t, filepath.Join(dir, mode.String()), mode), 4, "others may write")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	if err := os.Chown(kept, 12345, 0); err != nil {
		t.Fatal(err)
	}
	refused(t, kept, 4, "another user (12345)")
}

func refused(t *testing.T, path string, most int64, want string) {
	t.Helper()
	f, err := file.Open(path, most)
	if err == nil {
		f.Close()
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want one with %q", filepath.Base(path), err, want)
	}
}

// TestOverwrite: a new file gets the mode. An existing one keeps its mode and loses its text.
// A symbolic or hard link fails, and its target stays as it was.
func TestOverwrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pid")
	for _, text := range []string{"a long first text\n", "42\n"} {
		if err := file.Overwrite(path, text, 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); string(got) != text || err != nil {
			t.Errorf("the file holds %q, %v", got, err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	kept := write(t, filepath.Join(dir, "kept"), 0o600)
	if err := file.Overwrite(filepath.Join(dir, "gone", "pid"), "42", 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	eachOdd(t, dir, kept, func(name, path, want string) {
		if err := file.Overwrite(path, "42", 0o600); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	})
	second := filepath.Join(dir, "second")
	if err := os.Link(kept, second); err != nil {
		t.Fatal(err)
	}
	if err := file.Overwrite(second, "42", 0o600); err == nil || !strings.Contains(err.Error(), "hard link") {
		t.Errorf("a second name: error %v", err)
	}
	if got, err := os.ReadFile(kept); string(got) != "kept" || err != nil {
		t.Errorf("the file that others lead to holds %q, %v", got, err)
	}
	if _, err := os.Lstat(kept + "-gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made where a link leads to: %v", err)
	}
}

// write makes a file of that mode that holds the word kept.
func write(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte("kept"), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}
