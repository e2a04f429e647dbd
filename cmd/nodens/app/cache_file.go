package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/file"
)

// The saved cache is a file that holds one stream of [cache.Write], for the agent that
// starts without one to take over from.

const (
	// maxCacheAge is the oldest file that is read. Half of it would leave out what a node
	// that was down for maintenance could use of `serve_stale`; of one twice as old the
	// answers have ended by the default's highest TTL, twice.
	maxCacheAge = time.Hour
	// maxCacheFile is the longest file that is read: what the highest -cache-size can fill.
	// With half of it such a cache would be saved for nothing; what is longer isn't ours.
	maxCacheFile = MaxCacheSize
)

// saveCache writes what caches hold to path, in place of what is there, and gives the
// number of answers. There is the old file or the new one, whatever happens meanwhile, and
// no other: on an error (a full disk, the end of ctx) the old one. Of two that save at once
// one may get an error.
func saveCache(ctx context.Context, path string, caches map[string]*cache.Cache) (n int, err error) {
	err = file.Replace(path, func(w io.Writer) error {
		n, err = cache.Write(ctx, w, caches)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("saving the cache: %w; the file stays as it was", err)
	}
	return n, nil
}

// loadCache puts what saveCache has written to path into caches of the same names, and
// gives the number of answers taken. The whole file is checked before the first is.
// Without a file there is nothing, and no error. An error says why the file is not used;
// nothing was taken then, unless reading failed or ctx ended in the middle.
func loadCache(ctx context.Context, path string, caches map[string]*cache.Cache) (int, error) {
	n, err := loadCacheUpTo(ctx, path, caches, maxCacheAge)
	if err != nil {
		return n, fmt.Errorf("reading the saved cache: %w", err)
	}
	return n, nil
}

func loadCacheUpTo(ctx context.Context, path string, caches map[string]*cache.Cache, oldest time.Duration) (int, error) {
	f, err := file.Open(path, maxCacheFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	age, _, err := cache.Check(ctx, f)
	if err != nil {
		return 0, err
	}
	if age > oldest {
		return 0, fmt.Errorf("it was written %v ago, and what is older than %v is of no use", age.Round(time.Second), oldest)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	return cache.Read(ctx, f, caches)
}
