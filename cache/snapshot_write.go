package cache

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// A snapshot is the content of caches as a stream: from an agent to its successor, and in a
// file. All numbers are big-endian.
//
//	magic    8 bytes, version 2 bytes
//	chunks   type 1 byte, length 4 bytes, that many bytes, CRC-32C of all three
//
// The chunks are, in this order:
//
//	head     the timestamp of the stream
//	name     a cache: its number in this stream (2 bytes), its name
//	entries  a timestamp, and entries
//	end      the number of entries (4 bytes); without it the stream is incomplete
//
// A name comes before the entries that need it. An entry is
//
//	length   4 bytes, of what follows
//	head     its length (1 byte, itself included), flags (1), the cache (2), the original
//	         TTL in seconds, 0 if unknown (4), the nanoseconds left of it, negative after
//	         the expiry (8), the seconds until a refresh may be tried (4)
//	message  the result of [wire.Packed.Append]
//
// Entries are in the order of their last use over all caches, oldest first, so that a reader
// with room for fewer keeps the most recent ones. Of what follows from a message and the
// directive (kind, TTL, whether it denies a subtree) only the TTL is written, for the age:
// the reader classifies the message itself.
//
// A later version may append to timestamps, to heads of entries and to the end; it may have
// other chunks, which are skipped, and other flags, for which an entry is skipped. Any other
// change needs a new version number, which readers refuse.

const (
	magic = "nodensCA"
	// formatVersion is the version of this format.
	formatVersion = 1
	preambleLen   = len(magic) + 2
)

type chunkType byte

const (
	chunkHead chunkType = iota + 1
	chunkName
	chunkEntries
	chunkEnd
)

const (
	// chunkSize is what is written at once.
	chunkSize = 64 << 10
	// maxChunk is the longest chunk that is read. A chunk has up to twice chunkSize, because
	// its last entry may begin at the end and a message has up to 64 KiB; later versions may
	// have longer ones.
	maxChunk = 4 * chunkSize
	// maxCacheName is the longest name of a cache: room for some hundred zones, which is
	// what names are made of.
	maxCacheName = chunkSize
)

// The flags of an entry.
const (
	savedDO = 1 << iota
	savedCD
	savedFailed // it has expired, and a refresh has failed
	savedFlags  = savedDO | savedCD | savedFailed
)

// entryHeadLen is the length of an entry's head.
const entryHeadLen = 20

// maxRemaining bounds the time between now and an expiry, before or after it: four years, so
// that sums of a few don't overflow.
const maxRemaining = 4 * 365 * 24 * time.Hour

// ErrStream is wrapped by the errors of [Read] and [Check] that say that the stream is no
// snapshot, incomplete, or unusable here.
var ErrStream = errors.New("broken cache snapshot")

// Write writes the content of caches to w, each under its name, and returns the number of
// entries. It locks a shard for a short time only: changes meanwhile may be missing. It
// needs 48 bytes for each entry as long as it runs, and one buffer.
func Write(ctx context.Context, w io.Writer, caches map[string]*Cache) (int, error) {
	return newWriter(w, newBootClock()).write(ctx, caches)
}

// snapshotEntry is a copy of an entry that is to be written.
type snapshotEntry struct {
	packed   wire.Packed
	expires  time.Duration // on the clock of the cache's store
	lastUsed time.Duration
	ttl      uint32 // see [entry.ttl]
	cache    uint16
	flags    flags
}

// collect returns the usable entries of caches, least recently used first.
func collect(ctx context.Context, caches []*Cache) ([]snapshotEntry, error) {
	capacity := 0
	for _, c := range caches {
		n := c.Stats().Entries
		capacity += int(n.Success + n.Denial)
	}
	all := make([]snapshotEntry, 0, capacity+capacity/16) // some more may come meanwhile
	for number, c := range caches {
		for i := range c.shards {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			all = c.shards[i].collect(uint16(number), all)
		}
	}
	slices.SortFunc(all, func(a, b snapshotEntry) int { return cmp.Compare(a.lastUsed, b.lastUsed) })
	return all, nil
}

// collect appends p's usable entries to all.
func (p *cacheShard) collect(number uint16, all []snapshotEntry) []snapshotEntry {
	hashes := p.keys()
	all = slices.Grow(all, len(hashes)) // not under the lock
	now := p.shard.store.clock()
	p.visit(hashes, func(_ uint64, e *entry) {
		if e.flags&optionsFlag != 0 { // a stream has no place for them
			return
		}
		if e.alive(now) || p.cache.servable(e, now) {
			all = append(all, snapshotEntry{
				packed: e.packed, expires: e.expires, lastUsed: e.lastUsed, ttl: e.ttl, cache: number, flags: e.flags,
			})
		}
	})
	return all
}

// writer writes a stream chunk by chunk.
type writer struct {
	w       io.Writer
	clock   *bootClock
	b       []byte // the chunk that is being filled
	entries uint32
}

func newWriter(w io.Writer, clock *bootClock) *writer {
	return &writer{w: w, clock: clock, b: make([]byte, 0, 2*chunkSize+entryHeadLen+chunkOverhead)}
}

func (w *writer) write(ctx context.Context, caches map[string]*Cache) (int, error) {
	names := slices.Sorted(maps.Keys(caches))
	list := make([]*Cache, len(names))
	for i, name := range names {
		if len(name) > maxCacheName || i > 1<<16-1 {
			return 0, fmt.Errorf("saving cache %d: its name has %d bytes, at most %d caches with names of %d bytes can be saved", i, len(name), 1<<16, maxCacheName)
		}
		list[i] = caches[name]
	}
	all, err := collect(ctx, list)
	if err != nil {
		return 0, err
	}
	if err := w.header(names); err != nil {
		return 0, err
	}
	if err := w.allEntries(ctx, list, all); err != nil {
		return int(w.entries), err
	}
	w.begin(chunkEnd)
	w.b = binary.BigEndian.AppendUint32(w.b, w.entries)
	return int(w.entries), w.flush()
}

// header writes what comes before the entries.
func (w *writer) header(names []string) error {
	w.b = binary.BigEndian.AppendUint16(append(w.b[:0], magic...), formatVersion)
	if _, err := w.w.Write(w.b); err != nil {
		return err
	}
	w.begin(chunkHead)
	w.b = w.clock.now().append(w.b)
	if err := w.flush(); err != nil {
		return err
	}
	for i, name := range names {
		w.begin(chunkName)
		w.b = append(binary.BigEndian.AppendUint16(w.b, uint16(i)), name...)
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}

// allEntries writes the chunks of entries. The timestamp of a chunk is taken before the
// caches' clocks are read, so that an entry may seem older than it is, but never younger.
func (w *writer) allEntries(ctx context.Context, caches []*Cache, all []snapshotEntry) error {
	for i := 0; i < len(all); {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.begin(chunkEntries)
		w.b = w.clock.now().append(w.b)
		for ; i < len(all) && len(w.b) < chunkSize; i++ {
			c := caches[all[i].cache]
			w.entry(&all[i], c.store.clock())
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) entry(e *snapshotEntry, now time.Duration) {
	ttl, retry := e.ttl, uint32(0)
	var flags byte
	if e.flags&failedFlag != 0 {
		flags |= savedFailed
		ttl, retry = 0, seconds(max(time.Duration(e.ttl)*time.Second-now, 0))
	}
	if e.flags&doFlag != 0 {
		flags |= savedDO
	}
	if e.flags&cdFlag != 0 {
		flags |= savedCD
	}
	start := len(w.b)
	w.b = append(w.b, 0, 0, 0, 0, entryHeadLen, flags)
	w.b = binary.BigEndian.AppendUint16(w.b, e.cache)
	w.b = binary.BigEndian.AppendUint32(w.b, ttl)
	w.b = binary.BigEndian.AppendUint64(w.b, uint64(min(max(e.expires-now, -maxRemaining), maxRemaining)))
	w.b = binary.BigEndian.AppendUint32(w.b, retry)
	w.b = e.packed.Append(w.b)
	binary.BigEndian.PutUint32(w.b[start:], uint32(len(w.b)-start-4))
	w.entries++
}
