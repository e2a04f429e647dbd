// Package toolcache keeps what takes long to build or download outside of the repository:
// other projects' programs, agents of earlier commits, linters, Debian packages. All clones
// on a machine share it.
//
// The cache is $NODENS_CACHE, or nodens in the user's cache folder. A version of the layout
// comes first, then a folder for each name, and in it a folder for each key, the entry:
//
//	~/.cache/nodens/v2/etcd/2b2900ecedadc94b/etcd
//
// A name has one lock. The process that holds it looks for the entry, creates it if it is
// missing, and removes old ones. An entry is created under another name and then renamed, so
// a creation that is stopped halfway leaves nothing that looks complete. A process that uses
// an entry holds a shared lock on its folder, and an entry with such a lock is not removed.
// The kernel releases the locks of a process that ends.
//
// Whenever an entry is created, the least recently used entries beyond the name's limit are
// removed, and so are entries of any name that were not used for [maxUnused]. Files of the
// first layout go when they were not used for [maxUnusedOld].
package toolcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// layout is the version of the layout. Increase it when older code would misread the cache;
// then [Cache.removeOldLayout] must remove the files of this one.
const layout = "v2"

// The files in a name's folder besides its entries.
const (
	lockFile = "lock"
	// partSuffix ends the name of an entry that is being created. A key can't end with it.
	partSuffix = ".part"
)

// Cache is a cache folder. Its methods may be called from several goroutines and processes.
type Cache struct {
	// root is $NODENS_CACHE or its default, dir the folder of the present layout.
	root, dir string
}

// Open returns the cache and creates its folder.
func Open() (*Cache, error) {
	root := os.Getenv("NODENS_CACHE")
	if root == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("no folder for the cache; set NODENS_CACHE: %w", err)
		}
		root = filepath.Join(base, "nodens")
	}
	c := &Cache{root: root, dir: filepath.Join(root, layout)}
	return c, os.MkdirAll(c.dir, 0o755)
}

// Dir returns the folder of the present layout. Folders in it that have no file named lock are
// their users' own: they are never removed.
func (c *Cache) Dir() string { return c.dir }

// Entry says which entry a caller wants.
type Entry struct {
	// Name is the program or the sort of files, Key what distinguishes its versions. Both
	// are file names.
	Name, Key string
	// Limit is the maximum number of entries with this name. More exist only while they
	// are in use.
	Limit int
	// Renew replaces an existing entry once nothing uses it.
	Renew bool
}

// Use returns the path of the entry's folder. If there is none, or with Renew, it calls
// create to fill an empty folder, which then becomes the entry; on error nothing changes. Use
// blocks while another process uses the same name's lock, until ctx ends.
//
// The entry is not removed before release is called. A caller that never calls it keeps the
// entry for as long as its process lives.
func (c *Cache) Use(ctx context.Context, e Entry, create func(dir string) error) (dir string, release func(), err error) {
	base := filepath.Join(c.dir, e.Name)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", nil, err
	}
	unlock, err := c.Lock(ctx, filepath.Join(e.Name, lockFile))
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	dir = filepath.Join(base, e.Key)
	_, err = os.Stat(dir)
	if missing := errors.Is(err, fs.ErrNotExist); missing || err == nil && e.Renew {
		err = c.create(ctx, e, dir, create)
	}
	if err != nil {
		return "", nil, err
	}
	// The folder's time is that of its last use.
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil {
		return "", nil, err
	}
	fd, err := lock(ctx, dir, syscall.O_RDONLY|syscall.O_DIRECTORY, syscall.LOCK_SH)
	if err != nil {
		return "", nil, err
	}
	return dir, func() { _ = syscall.Close(fd) }, nil
}

// create makes the entry at dir and removes old ones. The caller holds the name's lock.
func (c *Cache) create(ctx context.Context, e Entry, dir string, create func(dir string) error) error {
	// What is left of other creations is nobody's: they held the lock.
	parts, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "*"+partSuffix))
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := os.RemoveAll(p); err != nil {
			return err
		}
	}
	part := dir + partSuffix
	defer os.RemoveAll(part)
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	if err := create(part); err != nil {
		return err
	}
	if e.Renew {
		if err := replace(ctx, part, dir); err != nil {
			return err
		}
	} else if err := os.Rename(part, dir); err != nil {
		return err
	}
	c.prune(e, dir)
	return nil
}

// replace renames part to dir. It waits until no process uses the present folder.
func replace(ctx context.Context, part, dir string) error {
	fd, err := lock(ctx, dir, syscall.O_RDONLY|syscall.O_DIRECTORY, syscall.LOCK_EX)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		defer func() { _ = syscall.Close(fd) }()
	}
	return errors.Join(os.RemoveAll(dir), os.Rename(part, dir))
}

// retry is how often lock tries again. A blocking flock(2) would not end with the context.
const retry = 50 * time.Millisecond

// Lock takes the exclusive lock of a file below the cache's folder, which it creates if it is
// missing. It blocks while another process has the lock, until ctx ends. The lock is held
// until unlock is called or the process ends.
func (c *Cache) Lock(ctx context.Context, name string) (unlock func(), err error) {
	fd, err := lock(ctx, filepath.Join(c.dir, name), syscall.O_CREAT|syscall.O_RDWR, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { _ = syscall.Close(fd) }, nil
}

// lock opens path and takes its lock. It returns a bare file descriptor, because the
// finalizer of an os.File would close it, and so release the lock of a caller that keeps
// nothing but the path.
func lock(ctx context.Context, path string, flags, how int) (fd int, err error) {
	for fd, err = -1, syscall.EINTR; errors.Is(err, syscall.EINTR); {
		fd, err = syscall.Open(path, flags|syscall.O_CLOEXEC, 0o644)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	for {
		switch err = syscall.Flock(fd, how|syscall.LOCK_NB); {
		case err == nil:
			return fd, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return -1, errors.Join(&fs.PathError{Op: "flock", Path: path, Err: err}, syscall.Close(fd))
		}
		select {
		case <-ctx.Done():
			return -1, errors.Join(fmt.Errorf("waiting for the lock of %s: %w", path, context.Cause(ctx)), syscall.Close(fd))
		case <-time.After(retry):
		}
	}
}
