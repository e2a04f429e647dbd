package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	files := slices.Concat(layers...)
	slices.SortFunc(files, func(a, b oci.File) int { return cmp.Compare(a.Path, b.Path) })
	for _, f := range files {
		name := filepath.Join(root, f.Path)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		switch f.Mode.Type() {
		case 0:
			err = errors.Join(err, os.WriteFile(name, f.Body, f.Mode))
		case fs.ModeDir:
			err = errors.Join(err, os.MkdirAll(name, f.Mode.Perm()))
		case fs.ModeSymlink:
			err = errors.Join(err, os.Symlink(f.Link, name))
		}
		if err != nil {
			return err
		}
	}
	modes := make(map[string]fs.FileMode)
	for _, f := range files {
		modes[filepath.Join(root, f.Path)] = f.Mode.Perm()
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
