package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/file"
)

// The saved cache is a file with one stream of [cache.Write]. An agent reads it if it starts
// without a predecessor.

const (
	// maxCacheAge is the age at which a file is ignored, except for names of `keep`: the highest TTL of a cache's default.
	maxCacheAge = time.Hour
	// maxCacheFile is the length at which a file is ignored, in bytes.
	maxCacheFile = options.MaxCacheSize
)

// saveCache writes the answers of caches to path and returns their number. It replaces the
// file in one step: after an error, such as a full disk or the end of ctx, the old file
// remains. Of two concurrent calls one may fail.
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

// loadCache loads the answers that saveCache has written to path into caches of the same names,
// and returns their number. It checks the whole file first. A missing file is no error. After
// an error nothing was loaded, unless reading failed or ctx ended during the load.
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
	read := cache.Read
	if age > oldest {
		read = cache.ReadKept
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := read(ctx, f, caches)
	if n == 0 && err == nil && age > oldest {
		return 0, fmt.Errorf("it was written %v ago, and what is older than %v is of no use", age.Round(time.Second), oldest)
	}
	return n, err
}
