package toolcache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// How long entries are kept without being used. Builds take minutes, so both are long.
const (
	maxUnused = 90 * 24 * time.Hour
	// Only clones of commits before the present layout use the files of an old one.
	maxUnusedOld = 14 * 24 * time.Hour
)

// usedEntry is an entry and the time of its last use.
type usedEntry struct {
	path string
	used time.Time
}

// prune removes the entries with e's name beyond its limit except the new one, entries of all
// names that have not been used for maxUnused, and files of the old layout. The caller holds
// the lock of e's name. What can't be removed stays.
func (c *Cache) prune(e Entry, created string) {
	now := time.Now()
	others := slices.DeleteFunc(entries(filepath.Dir(created)), func(u usedEntry) bool { return u.path == created })
	for i, old := range others {
		if i >= e.Limit-1 || now.Sub(old.used) > maxUnused {
			removeUnused(old.path)
		}
	}
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	for _, n := range names {
		if n.Name() != e.Name {
			pruneUnused(filepath.Join(c.dir, n.Name()), now)
		}
	}
	c.removeOldLayout(now)
}

// pruneUnused removes the entries of one name that have not been used for maxUnused. It does
// nothing while another process has the name's lock.
func pruneUnused(base string, now time.Time) {
	fd, ok := tryLock(filepath.Join(base, lockFile), syscall.O_RDWR)
	if !ok {
		return
	}
	defer func() { _ = syscall.Close(fd) }()
	for _, old := range entries(base) {
		if now.Sub(old.used) > maxUnused {
			removeUnused(old.path)
		}
	}
}

// entries returns the entries of one name, the most recently used first.
func entries(base string) []usedEntry {
	list, err := os.ReadDir(base)
	if err != nil {
		return nil
	}
	var found []usedEntry
	for _, d := range list {
		info, err := d.Info()
		if err == nil && d.IsDir() && !strings.HasSuffix(d.Name(), partSuffix) {
			found = append(found, usedEntry{filepath.Join(base, d.Name()), info.ModTime()})
		}
	}
	slices.SortFunc(found, func(a, b usedEntry) int { return b.used.Compare(a.used) })
	return found
}

// removeUnused removes the entry unless a process uses it. No process starts to use it
// meanwhile, because the caller holds the name's lock.
func removeUnused(path string) {
	if fd, ok := tryLock(path, syscall.O_RDONLY|syscall.O_DIRECTORY); ok {
		_ = os.RemoveAll(path)
		_ = syscall.Close(fd)
	}
}

// tryLock takes the exclusive lock of an existing file or folder. It reports failure if
// another process has a lock, and on any error.
func tryLock(path string, flags int) (fd int, ok bool) {
	fd, err := syscall.Open(path, flags|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, false
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = syscall.Close(fd)
		return -1, false
	}
	return fd, true
}

// firstLayout are the names of the files in the first layout, which kept all of them in one
// folder. They are given in full because $NODENS_CACHE may hold other files, too.
var firstLayout = []string{
	"coredns", "etcd", "helm", "kube-apiserver", "kube-controller-manager", "kube-proxy",
	"kube-scheduler", "kubectl", "kubelet", "nodens", "nodens-earlier", "debian-amd64", "debian-arm64",
}

// removeOldLayout removes the files of the first layout that nothing has used for
// maxUnusedOld. The code of that time does not record uses, so the time of the last access
// counts, which Linux updates once a day (mount(8), relatime). Locks go with the last file.
func (c *Cache) removeOldLayout(now time.Time) {
	kept := false
	files, locks := c.oldFiles()
	for _, path := range files {
		if now.Sub(lastAccess(path)) > maxUnusedOld {
			_ = os.RemoveAll(path)
		} else {
			kept = true
		}
	}
	if kept {
		return
	}
	for _, path := range locks {
		_ = os.Remove(path)
	}
}

// oldFiles returns the files of the first layout, and its locks and empty folders.
func (c *Cache) oldFiles() (files, locks []string) {
	files = []string{filepath.Join(c.root, "lint", "golangci-lint")}
	locks = []string{filepath.Join(c.root, "lint")}
	for _, name := range firstLayout {
		// The patterns are constant and well-formed, unless the folder's name has brackets.
		binaries, _ := filepath.Glob(filepath.Join(c.root, name+"-*"))
		for _, path := range append(binaries, filepath.Join(c.root, name), filepath.Join(c.root, name+".lock")) {
			info, err := os.Lstat(path)
			switch {
			case err != nil:
			case strings.HasSuffix(path, ".lock"):
				locks = append(locks, path)
			case info.Mode().IsRegular() || strings.HasPrefix(name, "debian-"):
				files = append(files, path)
			}
		}
	}
	return files, locks
}

// LinkFirstLayout links a file of the first layout to path, and reports whether there is one. A
// program that an earlier clone has built is not built again.
func (c *Cache) LinkFirstLayout(name, key, path string) bool {
	return os.Link(filepath.Join(c.root, name+"-"+key), path) == nil
}

// lastAccess returns the latest time at which path or a file in it was read or written. It
// returns the present time if it can't tell, and the zero time if path does not exist.
func lastAccess(path string) time.Time {
	var last time.Time
	err := filepath.WalkDir(path, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && !d.IsDir() {
			if read := time.Unix(s.Atim.Unix()); read.After(last) {
				last = read
			}
		}
		if info.ModTime().After(last) {
			last = info.ModTime()
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return time.Now()
	}
	return last
}
