package filewatch_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/internal/filewatch"
)

// write writes text to the file at path and sets its modification time.
func write(t *testing.T, path, text string, modified time.Time) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, modified, modified)); err != nil {
		t.Fatal(err)
	}
}

// TestChanged: each kind of change is reported once, and so is a failure.
func TestChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	at := time.Unix(1e9, 0)
	file := filewatch.File{Path: path}
	for _, step := range []struct {
		what    string
		do      func()
		changed bool
		err     error
	}{
		{"no file", func() {}, false, fs.ErrNotExist},
		{"a file", func() { write(t, path, "one", at) }, true, nil},
		{"another content of the same size", func() { write(t, path, "two", at.Add(time.Second)) }, true, nil},
		{"an older time", func() { write(t, path, "two", at) }, true, nil},
		{"another size at the same time", func() { write(t, path, "three", at) }, true, nil},
		{"another file of the same time and size", func() {
			write(t, path+".new", "seven", at)
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}, true, nil},
		{"no file any more", func() { _ = os.Remove(path) }, true, fs.ErrNotExist},
		{"a file again", func() { write(t, path, "seven", at) }, true, nil},
		{"a link to another file", func() {
			write(t, path+".target", "seven", at)
			if err := errors.Join(os.Remove(path), os.Symlink(path+".target", path)); err != nil {
				t.Fatal(err)
			}
		}, true, nil},
		{"the link's target", func() { write(t, path+".target", "eight", at.Add(time.Second)) }, true, nil},
	} {
		step.do()
		if changed, err := file.Changed(); changed != step.changed || !errors.Is(err, step.err) {
			t.Errorf("%s: %v, %v; want %v, %v", step.what, changed, err, step.changed, step.err)
		}
		if changed, err := file.Changed(); changed || !errors.Is(err, step.err) {
			t.Errorf("%s, again: %v, %v; want false, %v", step.what, changed, err, step.err)
		}
	}
}

// TestRead: a regular file is read up to the limit, and all else is an error that names the path.
func TestRead(t *testing.T) {
	const limit = 2 << 20
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	write(t, path, "", time.Now())
	for size, want := range map[int64]string{0: "", limit: "", limit + 1: "it is larger than 2 MiB"} {
		if err := os.Truncate(path, size); err != nil { // a hole, no blocks
			t.Fatal(err)
		}
		text, err := filewatch.Read(path, limit)
		if want == "" && (err != nil || int64(len(text)) != size) {
			t.Errorf("%d bytes: read %d, %v", size, len(text), err)
		}
		if want != "" && !isPathError(err, path, want) {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
	null := filepath.Join(dir, "null")
	if err := os.Symlink(os.DevNull, null); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{os.DevNull, null} {
		if text, err := filewatch.Read(path, limit); err != nil || len(text) > 0 {
			t.Errorf("%s: %q, %v; want an empty file", path, text, err)
		}
	}
	if _, err := filewatch.Read(dir, limit); !errors.Is(err, filewatch.ErrNotRegular) || !isPathError(err, dir, "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if none := path + ".none"; !errors.Is(func() error { _, err := filewatch.Read(none, limit); return err }(), fs.ErrNotExist) {
		t.Errorf("%s does not exist, which is no error", none)
	}
}

func isPathError(err error, path, text string) bool {
	var pathError *fs.PathError
	return errors.As(err, &pathError) && pathError.Path == path && strings.Contains(err.Error(), text)
}

// TestEvery: the function is called once per interval until the context ends, and never without an interval.
func TestEvery(t *testing.T) {
	for interval, want := range map[time.Duration]int{time.Second: 10, 0: 0, -time.Second: 0} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			calls, ended := 0, make(chan struct{})
			go func() {
				filewatch.Every(ctx, interval, func() { calls++ })
				close(ended)
			}()
			time.Sleep(10*time.Second + time.Millisecond) // fake time
			cancel()
			<-ended
			time.Sleep(10 * time.Second)
			if calls != want {
				t.Errorf("every %v: %d calls, want %d", interval, calls, want)
			}
		})
	}
}
