package peer

// CacheDir returns the directory that keeps programs between test runs, which it creates:
// $NODENS_CACHE, or nodens in the user's cache directory.
func CacheDir() (string, error) { return store() }
