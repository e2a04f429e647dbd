package resolvconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nodens-dns/nodens/internal/file"
)

// newMode is the mode of a file that did not exist: every program reads it.
const newMode fs.FileMode = 0o644

// replace writes text to the file at path, which keeps its mode and owner, by a rename, so that a reader finds
// the old text or the new one. A link at path is replaced. If the file can't be renamed over, because it is a mount
// point, or because its directory is read-only, it is written in place.
func replace(path string, text []byte) error {
	info, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if info != nil && !info.Mode().IsRegular() {
		info = nil
	}
	err = file.ReplaceFile(path, func(f *os.File) error {
		_, err := f.Write(text)
		if info == nil {
			return errors.Join(err, f.Chmod(newMode))
		}
		return errors.Join(err, f.Chmod(info.Mode().Perm()), copyOwner(f, path, info))
	})
	if err == nil || info == nil {
		return err
	}
	if writeErr := overwrite(path, text); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	return nil
}

// overwrite writes text to a file in place. A reader may find a part of it.
func overwrite(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	return errors.Join(err, f.Close())
}

// replaceByLink puts a symbolic link at path.
func replaceByLink(path, target string) error {
	temp := filepath.Join(filepath.Dir(path), ".nodens-resolv-link")
	_ = os.Remove(temp) // which a killed process has left
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	err := os.Rename(temp, path)
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}
