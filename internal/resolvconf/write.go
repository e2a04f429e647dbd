package resolvconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// tempPattern is the name of temporary files, which a killed process leaves.
const tempPattern = ".nodens-resolv-*"

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
	temp, err := writeTemp(path, text, info)
	if err == nil {
		if err = os.Rename(temp, path); err == nil {
			return nil
		}
		_ = os.Remove(temp)
	}
	if info == nil {
		return err
	}
	if writeErr := overwrite(path, text); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	return nil
}

// writeTemp writes text to a new file beside path, with the mode and the owner of like; nil: newMode and this
// user's.
func writeTemp(path string, text []byte, like fs.FileInfo) (name string, err error) {
	f, err := os.CreateTemp(removeTemps(path), tempPattern)
	if err != nil {
		return "", err
	}
	mode := newMode
	if like != nil {
		mode = like.Mode().Perm()
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode))
	if err == nil && like != nil {
		err = copyOwner(f, path, like)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// removeTemps removes temporary files beside path, and returns the directory.
func removeTemps(path string) (dir string) {
	dir = filepath.Dir(path)
	left, _ := filepath.Glob(filepath.Join(dir, tempPattern))
	for _, name := range left {
		_ = os.Remove(name)
	}
	return dir
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
	temp := filepath.Join(removeTemps(path), ".nodens-resolv-link")
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	err := os.Rename(temp, path)
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}
