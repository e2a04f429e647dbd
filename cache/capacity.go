package cache

import (
	"math"
	"sync/atomic"
	"time"
)

// capacity bounds the entries of one kind in all shards of a cache. A shard's list has no bound of its own, so that
// chance, which fills some shards before others, evicts no entry while there is room.
type capacity struct {
	entries int64
	used    atomic.Int64
	// oldest has, for each shard, a time before which none of its entries was used last; math.MaxInt64 if it has none.
	// A hit changes no such time: it remains a lower bound, which makeRoom corrects.
	oldest []atomic.Int64
}

func (c *capacity) init(entries, shards int) {
	c.entries = int64(entries)
	c.oldest = make([]atomic.Int64, shards)
	for i := range c.oldest {
		c.oldest[i].Store(math.MaxInt64)
	}
}

// leastRecent returns the shard whose entries may be the least recently used ones, -1 if there are no entries, and a time before
// which no other shard's entry was used last.
func (c *capacity) leastRecent() (shard int, others time.Duration) {
	shard = -1
	least, second := int64(math.MaxInt64), int64(math.MaxInt64)
	for i := range c.oldest {
		switch at := c.oldest[i].Load(); {
		case at < least:
			shard, least, second = i, at, least
		case at < second:
			second = at
		}
	}
	return shard, time.Duration(second)
}
