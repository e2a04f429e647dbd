package cache

import (
	"bytes"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Flush removes the entries for name, lower case and in wire form, of all types. With
// subtree it also removes those for all names below. It returns how many it removed. The
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

func (p *cacheShard) flush(name []byte, subtree bool) (removed int) {
	matches := func(n []byte) bool {
		return bytes.Equal(n, name) || subtree && wire.Under(n, wire.Name(name))
	}
	s := p.shard
	s.mu.Lock()
	for _, f := range s.calls {
		for ; f != nil; f = f.next {
			f.flushed = f.flushed || f.shard == p && matches(f.q.Name())
		}
	}
	s.mu.Unlock()
	p.visit(p.keys(), func(hash uint64, e *entry) {
		if matches(e.packed.Name()) {
			p.remove(hash, e)
			removed++
		}
	})
	return removed
}
