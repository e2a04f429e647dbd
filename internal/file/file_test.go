package file_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodens-dns/nodens/internal/file"
)

// TestReplace: the new content is there whole, with nothing beside it, and whoever has the
// old file open still reads the old content.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, name := range []string{path, filepath.Join(dir, ".nodens-state-left"), filepath.Join(dir, ".state-left")} {
		if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := file.Replace(path, text("new")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); string(got) != "new" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if got, err := io.ReadAll(reader); string(got) != "old" {
		t.Errorf("who had it open reads %q, %v", got, err)
	}
	if got, want := list(t, dir), []string{".state-left", "state"}; !slices.Equal(got, want) {
		t.Errorf("the folder holds %q, want %q", got, want)
	}
}

// TestReplaceFails: an error while writing leaves the old file, and nothing else.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	if err := file.Replace(path, text("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space")
	err := file.Replace(path, func(w io.Writer) error { return errors.Join(text("half")(w), full) })
	if !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
	if got, err := os.ReadFile(path); string(got) != "old" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if got, want := list(t, dir), []string{"state"}; !slices.Equal(got, want) {
		t.Errorf("the folder holds %q, want %q", got, want)
	}
	if err := file.Replace(filepath.Join(dir, "no", "state"), text("new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v for a folder that does not exist", err)
	}
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestJSONValues: values may follow each other; a text that is not JSON as a whole has none.
func TestJSONValues(t *testing.T) {
	for text, want := range map[string][]string{
		`{"a": 1}`:            {`{"a": 1}`},
		"{\"a\": 1}\n{} null": {`{"a": 1}`, "{}", "null"},
		"":                    nil,
		"a: 1":                nil,
		`{"a": 1} {`:          nil,
	} {
		var got []string
		for _, value := range file.JSONValues([]byte(text)) {
			got = append(got, string(value))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q has the values %q, want %q", text, got, want)
		}
	}
}
