// Package sketch finds the most frequent keys of a stream in bounded memory.
//
// A [Sketch] is a space-saving table (Metwally, Agrawal and El Abbadi, "Efficient Computation of
// Frequent and Top-k Elements in Data Streams", 2005). It counts up to [MaxKeys] keys. A new key
// replaces the key with the lowest count and takes over its count as an error: the count of a key is
// never too low, and too high by at most the key's error. [Windows] answers for the last ten
// seconds, minute and hour.
package sketch

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"
)

const (
	// MaxKeys is the number of keys that a [Sketch] counts, if they have 32 bytes or less on average.
	MaxKeys = 256
	// MaxKeyLen is the length of the longest key, in bytes: a domain name, and some for a client or a cause. A
	// longer key is cut.
	MaxKeyLen = 288
	// maxChunks is the number of chunks for the bytes of keys. Longer keys leave room for fewer
	// keys: the longest ones for 28.
	maxChunks = 512
	chunkLen  = 16
)

// Sketch counts the keys of a stream. [New] makes it. It takes 17 KiB and never grows. It is not
// safe for concurrent use.
type Sketch struct {
	seed      maphash.Seed
	sum       uint64
	maxWeight uint64
	floor     uint64
	n         int // used entries

	entries [MaxKeys]entry
	// heap has the used entries, those with lower counts first; pos is each entry's place in it.
	// Its other elements are the unused entries.
	heap, pos [MaxKeys]uint8
	// buckets are the hash chains: the first entry of each, linked by next. Numbers of entries and
	// chunks are stored plus one; 0 ends a chain.
	buckets, next [MaxKeys]uint16

	chunks     [maxChunks][chunkLen]byte
	nextChunk  [maxChunks]uint16
	freeChunk  uint16
	freeChunks int
}

// entry is one key with its count.
type entry struct {
	count, err uint64
	hash       uint32
	chunk      uint16 // the first one of the key, plus one
	length     uint16 // of the key
}

// Entry is a key of a stream. Its true count is Count at most, and Count-Error at least.
type Entry struct {
	Key          string
	Count, Error uint64
}

// New makes an empty Sketch.
func New() *Sketch {
	s := &Sketch{seed: maphash.MakeSeed()}
	s.Reset()
	return s
}

// Reset removes all keys.
func (s *Sketch) Reset() {
	s.sum, s.maxWeight, s.floor, s.n = 0, 0, 0, 0
	clear(s.buckets[:])
	for i := range s.heap {
		s.heap[i], s.pos[i] = uint8(i), uint8(i)
	}
	for i := range s.nextChunk {
		s.nextChunk[i] = uint16(i + 2)
	}
	s.nextChunk[maxChunks-1] = 0
	s.freeChunk, s.freeChunks = 1, maxChunks
}

// Sum returns the sum of all weights. It is exact.
func (s *Sketch) Sum() uint64 { return s.sum }

// Floor returns the highest count that a key may have which is not in the table; 0 if all keys are.
// It is at most Sum divided by [MaxKeys] if no key has more than 32 bytes.
func (s *Sketch) Floor() uint64 { return s.floor }

// Add counts key weight times. It does not keep key, and does not allocate. A known key costs one
// hash. A new key may replace others, 18 at most.
func (s *Sketch) Add(key []byte, weight uint64) {
	if weight == 0 {
		return
	}
	key = key[:min(len(key), MaxKeyLen)]
	s.sum += weight
	s.maxWeight = max(s.maxWeight, weight)
	hash := uint32(maphash.Bytes(s.seed, key))
	bucket := &s.buckets[hash%MaxKeys]
	for at := *bucket; at != 0; at = s.next[at-1] {
		if e := &s.entries[at-1]; e.hash == hash && s.hasKey(e, key) {
			e.count += weight
			s.down(int(s.pos[at-1]))
			return
		}
	}
	for need := chunksOf(len(key)); s.n == MaxKeys || s.freeChunks < need; {
		s.evict()
	}
	i := s.heap[s.n]
	s.entries[i] = entry{count: s.floor + weight, err: s.floor, hash: hash, chunk: s.store(key), length: uint16(len(key))}
	s.next[i], *bucket = *bucket, uint16(i)+1
	s.n++
	s.up(s.n - 1)
}

// evict removes the key with the lowest count.
func (s *Sketch) evict() {
	i := s.heap[0]
	e := &s.entries[i]
	s.floor = max(s.floor, e.count)
	at := &s.buckets[e.hash%MaxKeys]
	for *at != uint16(i)+1 {
		at = &s.next[*at-1]
	}
	*at = s.next[i]
	s.release(e)
	s.n--
	s.swap(0, s.n)
	s.down(0)
}

// chunksOf returns the number of chunks for length bytes. An empty key has one, too.
func chunksOf(length int) int { return max(1, (length+chunkLen-1)/chunkLen) }

// store copies key into free chunks, of which there are enough, and returns the first one.
func (s *Sketch) store(key []byte) (first uint16) {
	n := chunksOf(len(key))
	s.freeChunks -= n
	at := &first
	for range n {
		c := s.freeChunk
		s.freeChunk = s.nextChunk[c-1]
		key = key[copy(s.chunks[c-1][:], key):]
		*at = c
		at = &s.nextChunk[c-1]
	}
	*at = 0
	return first
}

// release frees the chunks of e.
func (s *Sketch) release(e *entry) {
	for c := e.chunk; c != 0; {
		next := s.nextChunk[c-1]
		s.nextChunk[c-1], s.freeChunk = s.freeChunk, c
		s.freeChunks++
		c = next
	}
}

// hasKey reports whether e is key's.
func (s *Sketch) hasKey(e *entry, key []byte) bool {
	if int(e.length) != len(key) {
		return false
	}
	for c := e.chunk; len(key) > 0; c = s.nextChunk[c-1] {
		n := min(len(key), chunkLen)
		if !bytes.Equal(s.chunks[c-1][:n], key[:n]) {
			return false
		}
		key = key[n:]
	}
	return true
}

// appendKey appends e's key to to.
func (s *Sketch) appendKey(to []byte, e *entry) []byte {
	left := int(e.length)
	for c := e.chunk; left > 0; c = s.nextChunk[c-1] {
		n := min(left, chunkLen)
		to = append(to, s.chunks[c-1][:n]...)
		left -= n
	}
	return to
}

// up moves the heap's element i up to its place.
func (s *Sketch) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if s.at(parent).count <= s.at(i).count {
			return
		}
		s.swap(i, parent)
		i = parent
	}
}

// down moves the heap's element i down to its place.
func (s *Sketch) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < s.n; child++ {
			if s.at(child).count < s.at(least).count {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

// at returns the heap's element i.
func (s *Sketch) at(i int) *entry { return &s.entries[s.heap[i]] }

func (s *Sketch) swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.pos[s.heap[i]], s.pos[s.heap[j]] = uint8(i), uint8(j)
}

// Top returns the n keys with the highest counts, the highest first. Keys with the same count are
// in the order of their bytes.
func (s *Sketch) Top(n int) []Entry {
	list := s.list()
	slices.SortFunc(list, compareEntries)
	return list[:max(0, min(n, len(list)))]
}

// list returns all keys, in no order.
func (s *Sketch) list() []Entry {
	list := make([]Entry, s.n)
	var key []byte
	for i := range list {
		e := s.at(i)
		key = s.appendKey(key[:0], e)
		list[i] = Entry{Key: string(key), Count: e.count, Error: e.err}
	}
	return list
}

// compareEntries puts the highest counts first.
func compareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Key, b.Key))
}
