package cluster

import (
	"os"
	"path/filepath"
)

// WorkDir makes dir, where files and logs go, and returns its absolute path; "" stands for a
// temporary folder, whose name is made from pattern. remove deletes the temporary folder, and leaves
// another one; call it at the end, also after an error.
func WorkDir(dir, pattern string) (path string, remove func() error, err error) {
	if dir == "" {
		path, err = os.MkdirTemp("", pattern)
		return path, func() error { return os.RemoveAll(path) }, err
	}
	if path, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(path, 0o755)
	}
	return path, func() error { return nil }, err
}
