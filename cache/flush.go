package cache

// Flush removes the entries for name, lower case and in wire form, of all types. With
// subtree it also removes those for all names below. A denial of a name above that denies name,
// too (nxdomain_cut.go), is removed. It returns how many it removed. The
// result of an exchange that runs meanwhile reaches its clients and is not stored. Flush may
// take some milliseconds; the cache stays usable.
func (c *Cache) Flush(name []byte, subtree bool) int {
	n := 0
	for i := range c.shards {
		n += c.shards[i].flush(name, subtree)
	}
	return n
}

// Flush is [Cache.Flush] for all caches of the store.
func (s *Store) Flush(name []byte, subtree bool) int {
	n := 0
	for i := range s.shards {
		for _, p := range s.shards[i].openCaches() {
			n += p.flush(name, subtree)
		}
	}
	return n
}
