package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// writeRoot writes an image's files to the directory root, as a container sees them, for
// builds that copy them into an image of their own. root must be empty or not exist yet.
// The files belong to the user who runs the command.
func writeRoot(root string, layers []oci.Layer) error {
	if entries, err := os.ReadDir(root); err == nil && len(entries) > 0 {
		return fmt.Errorf("-root %s is not empty; give an empty directory, or one that does not exist", root)
	}
	modes := make(map[string]fs.FileMode)
	for _, layer := range layers {
		for _, f := range layer {
			name := filepath.Join(root, filepath.FromSlash(f.Path))
			modes[name] = f.Mode & (fs.ModePerm | fs.ModeSticky)
			if err := writeFile(name, f); err != nil {
				return err
			}
		}
	}
	// Last, because writing changes the times of directories. This also undoes the umask.
	// Files in image layers have the same time.
	epoch := time.Unix(0, 0)
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		return errors.Join(os.Chmod(name, cmp.Or(modes[name], 0o755)), os.Chtimes(name, epoch, epoch))
	})
}

// writeFile writes one file and creates its parent directories.
func writeFile(name string, f oci.File) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		return os.MkdirAll(name, 0o755)
	case fs.ModeSymlink:
		return os.Symlink(f.Link, name)
	default:
		return os.WriteFile(name, f.Body, 0o644)
	}
}
