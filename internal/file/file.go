// Package file reads and writes the agent's own files. [Replace] is atomic: after a full
// disk, a kill or a power failure the file has either the old or the new content. [Open] and
// [Overwrite] refuse files that another user may have put at the path.
package file

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Replace replaces the content of the file at path with what write writes. It writes to a
// temporary file in the same directory, which only this user can read, and renames it; it
// removes temporary files that a killed process has left. On an error the old file stays
// and the temporary file is removed. Of two concurrent calls for one path one may fail.
func Replace(path string, write func(io.Writer) error) error {
	return ReplaceFile(path, func(f *os.File) error { return write(f) })
}

// ReplaceFile is Replace with the temporary file itself, whose mode and owner write may change.
func ReplaceFile(path string, write func(*os.File) error) (err error) {
	dir, name := filepath.Split(path)
	dir, pattern := filepath.Clean(dir), ".nodens-"+name+"-*"
	left, _ := filepath.Glob(filepath.Join(dir, pattern))
	for _, name := range left {
		_ = os.Remove(name)
	}
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return fmt.Errorf("creating a temporary file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("replacing the file: %w", err)
	}
	return syncDir(dir)
}

// syncDir makes a rename in dir survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
