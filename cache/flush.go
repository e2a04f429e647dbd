package cache

import (
	"bytes"

	"github.com/nodens-dns/nodens/internal/wire"
)

// flushing is how many entries are looked at in one taking of the lock: those who wait
// for an answer meanwhile wait some ten microseconds. With half as many it would be
// taken twice as often to no use.
const flushing = 256

// Flush removes the entries for name, lower case and in wire form, of all types, and
// with subtree those for all names below it; it gives how many there were. What is being
// asked for when it is called reaches those who wait, and is not kept. It may take some
// milliseconds, in which the cache is used as ever.
func (c *Cache) Flush(name []byte, subtree bool) int {
	n := 0
	for i := range c.parts {
		n += c.parts[i].shard.flush(c, name, subtree)
	}
	return n
}

// Flush is [Cache.Flush] for all caches of the store.
func (s *Store) Flush(name []byte, subtree bool) int {
	n := 0
	for i := range s.shards {
		n += s.shards[i].flush(nil, name, subtree)
	}
	return n
}

// flush removes what there is of name in c; nil is all caches.
func (s *shard) flush(c *Cache, name []byte, subtree bool) int {
	of := func(p *part, n []byte) bool {
		return (c == nil || p.cache == c) && (bytes.Equal(n, name) || subtree && wire.Under(n, wire.Name(name)))
	}
	s.mu.Lock()
	for _, chain := range s.flights {
		for f := chain; f != nil; f = f.next {
			f.flushed = f.flushed || of(f.part, f.q.Name())
		}
	}
	at := s.last
	s.mu.Unlock()
	total := 0
	for at != none {
		var n int
		at, n = s.flushSome(at, of)
		total += n
	}
	return total
}

// flushSome looks at the slots from at downwards, and gives where to go on. What a
// removal puts in a slot's place is the last one, which has been looked at, or has come
// since and is news.
func (s *shard) flushSome(at ref, of func(*part, []byte) bool) (next ref, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = min(at, s.last)
	for range flushing {
		if at == none {
			break
		}
		e := s.at(at)
		if of(s.parts[e.owner>>ownerShift], e.packed.Name()) {
			s.remove(at)
			n++
		}
		at--
	}
	return at, n
}
