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

// lay makes a folder with an image's files, as a container would see it, for those who
// copy it into an image of their own. The folder must be empty or not there yet. All
// belong to who runs it.
func lay(root string, layers []oci.Layer) error {
	if entries, err := os.ReadDir(root); err == nil && len(entries) > 0 {
		return fmt.Errorf("-root %s is not empty; give a folder that is, or that is not there", root)
	}
	modes := make(map[string]fs.FileMode)
	for _, layer := range layers {
		for _, f := range layer {
			name := filepath.Join(root, filepath.FromSlash(f.Path))
			modes[name] = f.Mode & (fs.ModePerm | fs.ModeSticky)
			if err := place(name, f); err != nil {
				return err
			}
		}
	}
	// Behind the writing, which changes times of folders; whatever the umask is. The time
	// is that of files in an image.
	then := time.Unix(0, 0)
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		return errors.Join(os.Chmod(name, cmp.Or(modes[name], 0o755)), os.Chtimes(name, then, then))
	})
}

// place makes one file, with the folders above it.
func place(name string, f oci.File) error {
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
