package peer

import "github.com/nodens-dns/nodens/internal/toolcache"

// CacheDir returns the directory that keeps programs between test runs, which it creates. See
// package toolcache.
func CacheDir() (string, error) {
	cache, err := toolcache.Open()
	if err != nil {
		return "", err
	}
	return cache.Dir(), nil
}
