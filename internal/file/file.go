// Package file reads and writes the agent's own files. [Replace] replaces one whole:
// whatever happens meanwhile (a full disk, a kill, a loss of power), what a reader finds at
// the path is the old content or the new one. [Open] and [Overwrite] take nothing for the
// agent's own that another user may have put at the path.
package file

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Replace makes the file at path what write writes. It writes beside it first, to a file
// that only this user can read, and takes away what a process has left that was killed at
// that. On an error the old file stays and no other is left. Of two calls for one path at
// once one may get an error.
func Replace(path string, write func(io.Writer) error) (err error) {
	dir, name := filepath.Split(path)
	dir, pattern := filepath.Clean(dir), "."+name+"-*"
	left, _ := filepath.Glob(filepath.Join(dir, pattern))
	for _, name := range left {
		_ = os.Remove(name)
	}
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return fmt.Errorf("making a file beside it: %w", err)
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
		return fmt.Errorf("writing it: %w", err)
	}
	return syncDir(dir)
}

// syncDir makes a rename in dir outlive a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
