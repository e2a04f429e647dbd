package report

// CacheEntries is the reply to GET /cache/entries: what the caches have for a name.
type CacheEntries struct {
	Header
	Name string `json:"name"`
	// Caches are the caches that cover the name, in the order of the Corefile, More how many others there
	// are.
	Caches []CachedName `json:"caches"`
	More   int          `json:"more"`
	// KernelCopies are the copies of answers for the name that the kernel has, MoreKernelCopies how many others
	// there are.
	KernelCopies     []KernelCopy `json:"kernelCopies"`
	MoreKernelCopies int          `json:"moreKernelCopies"`
}

// CachedName is what one cache has for a name.
type CachedName struct {
	Cache
	Entries []CacheEntry `json:"entries"`
	// MoreEntries is the number of further entries.
	MoreEntries int `json:"moreEntries"`
	// DeniedBy is the denial of a name above because of which the name is denied (`nxdomain_cut`), null for none.
	DeniedBy *CacheEntry `json:"deniedBy"`
}

// Cache identifies the cache of a server block.
type Cache struct {
	Zones []string `json:"zones"`
	View  string   `json:"view"` // "" without a view
	Line  int      `json:"line"` // of the server block in the Corefile
}

// CacheStats is the reply to GET /cache: the caches in numbers.
type CacheStats struct {
	Header
	// Bytes is what all entries take, BudgetBytes the most that they may take.
	Bytes       int `json:"bytes"`
	BudgetBytes int `json:"budgetBytes"`
	// Caches are in the order of the Corefile, More how many others there are.
	Caches []CacheCounts `json:"caches"`
	More   int           `json:"more"`
}

// CacheCounts are the numbers of one cache: counters since it was made, and the entries that it has. Answers in the
// kernel count as hits.
type CacheCounts struct {
	Cache
	Bytes   int       `json:"bytes"`
	Success KindCount `json:"success"`
	Denial  KindCount `json:"denial"`
	Misses  uint64    `json:"misses"`
	// Stale are the hits by expired answers, Cuts the hits by the denial of a name above, Prefetches the
	// refreshes that no client waited for.
	Stale      uint64 `json:"stale"`
	Cuts       uint64 `json:"cuts"`
	Prefetches uint64 `json:"prefetches"`
}

// KindCount are the numbers of one kind of entries. Entries includes those that have expired.
type KindCount struct {
	Entries   uint64 `json:"entries"`
	Capacity  uint64 `json:"capacity"`
	Hits      uint64 `json:"hits"`
	Evictions uint64 `json:"evictions"`
}
