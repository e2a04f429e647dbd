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

// What caches hold outlives the process as a stream: from an agent to the one that takes
// over, and in a file. All numbers are big-endian.
//
//	magic    8 bytes, version 2 bytes
//	chunks   type 1 byte, length 4 bytes, that many bytes, CRC-32C of all three
//
// The chunks are, in this order:
//
//	head     when it was written: a stamp
//	name     a cache: the number it has from here on (2 bytes), its name
//	entries  a stamp, and from there on entries
//	end      the number of entries (4 bytes); without it the stream is not whole
//
// Names come before the entries that need them. An entry is
//
//	length   4 bytes, of what follows
//	head     its length (1 byte, itself included), flags (1), the cache (2), the life in
//	         seconds, 0 if unknown (4), nanoseconds that are left of it, or negative since
//	         it ended (8), seconds in which nobody is to ask anew (4)
//	message  what [wire.Packed.Append] gives
//
// Entries come in the order of their last use over all caches, the oldest first, so that
// whoever has room for fewer keeps the right ones. Of what follows from a message and the
// directive (its kind, the whole life, whether it denies names below it) only the life is
// told, for the age: whoever reads it judges for himself.
//
// A later version may append to stamps, to heads of entries and to the end, may have
// other chunks, which are passed over, and other flags, for which an entry is passed
// over. Whatever else would be misread is a new version of the format, which is refused.

const (
	magic = "nodensCA"
	// formatVersion is that of all the above.
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
	// chunkSize is what is written at once. Half of it would double the system calls,
	// twice as much would only hold what has come for longer before it can be checked.
	chunkSize = 64 << 10
	// maxChunk is the longest chunk that is read: the last entry may begin where the
	// others end, and a message has 64 KiB. Twice as much is for later versions.
	maxChunk = 4 * chunkSize
	// maxCacheName is the longest name of a cache: room for some hundred zones, which is
	// what names are made of. Twice as much would not fit into a chunk with what a later
	// version may have to say.
	maxCacheName = chunkSize
)

// The flags of an entry.
const (
	savedDO = 1 << iota
	savedCD
	savedFailed // it has ended, and asking anew has failed
	savedFlags  = savedDO | savedCD | savedFailed
)

// entryHeadLen is the length of an entry's head.
const entryHeadLen = 20

// maxLeft bounds how far the end of an entry may lie from now, on either side: four
// years, so that sums of a few don't overflow. TTLs of half of it are no use to anybody.
const maxLeft = 4 * 365 * 24 * time.Hour

// ErrStream is what errors of [Read] and [Check] wrap that say that the stream is not one
// of saved answers, not whole, or not good for anything here.
var ErrStream = errors.New("broken cache stream")

// Write writes what caches hold to w, each under its name. It holds a shard's lock for a
// short time only; what changes meanwhile may be in it or not, and what changes place may
// be in it twice. It needs 48 bytes for each answer as long as it writes, and one buffer.
// It returns the number of answers.
func Write(ctx context.Context, w io.Writer, caches map[string]*Cache) (int, error) {
	return newWriter(w, newWatch()).write(ctx, caches)
}

// kept is an entry on its way out of the cache.
type kept struct {
	packed  wire.Packed
	expires time.Duration // on the clock of the cache's store
	used    uint64
	life    uint32 // see [slot.life]
	owner   uint32 // tags and state
	cache   uint16
}

// gathering is how many slots are copied in one taking of a shard's lock: those who wait
// for an answer meanwhile wait a few microseconds. With half as many the lock would be
// taken twice as often to no use.
const gathering = 64

// gather lists what list, in which the numbers of caches are, holds, the unused for longest
// first.
func gather(ctx context.Context, list []*Cache) ([]kept, error) {
	numbers := make(map[*Cache]uint16, len(list))
	stores := make(map[*Store]bool)
	room := 0
	for i, c := range list {
		numbers[c] = uint16(i)
		stores[c.store] = true
		n := c.Stats().Entries
		room += int(n.Success + n.Denial)
	}
	all := make([]kept, 0, room+room/16) // some more may come meanwhile
	for s := range stores {
		for i := range s.shards {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for at := ref(1<<32 - 1); at != none; {
				all = slices.Grow(all, gathering) // not under the lock
				all, at = s.shards[i].gatherSome(at, numbers, all)
			}
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Compare(a.used, b.used) })
	return all, nil
}

// gatherSome copies the slots from at downwards to all, and gives where to go on. What a
// removal puts in a slot's place is the last one, which has been looked at.
func (s *shard) gatherSome(at ref, numbers map[*Cache]uint16, all []kept) ([]kept, ref) {
	now := s.store.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	at = min(at, s.last)
	for range gathering {
		if at == none {
			break
		}
		e := s.at(at)
		at--
		p := s.parts[e.owner>>ownerShift]
		number, wanted := numbers[p.cache]
		if !wanted || !e.alive(now) && !p.cache.usable(e, now) {
			continue
		}
		all = append(all, kept{
			packed: e.packed, expires: e.expires, used: e.used, life: e.life, owner: e.owner & (1<<ownerShift - 1), cache: number,
		})
	}
	return all, at
}

// writer writes a stream chunk by chunk.
type writer struct {
	w       io.Writer
	watch   *watch
	b       []byte // the chunk that is being filled
	entries uint32
}

func newWriter(w io.Writer, at *watch) *writer {
	return &writer{w: w, watch: at, b: make([]byte, 0, 2*chunkSize+entryHeadLen+chunkOverhead)}
}

func (w *writer) write(ctx context.Context, caches map[string]*Cache) (int, error) {
	names := slices.Sorted(maps.Keys(caches))
	list := make([]*Cache, len(names))
	for i, name := range names {
		if len(name) > maxCacheName || i > 1<<16-1 {
			return 0, fmt.Errorf("the name of cache %d has %d bytes: too many to save", i, len(name))
		}
		list[i] = caches[name]
	}
	all, err := gather(ctx, list)
	if err != nil {
		return 0, err
	}
	if err := w.preface(names); err != nil {
		return 0, err
	}
	if err := w.all(ctx, list, all); err != nil {
		return int(w.entries), err
	}
	w.begin(chunkEnd)
	w.b = binary.BigEndian.AppendUint32(w.b, w.entries)
	return int(w.entries), w.flush()
}

// preface writes all that stands before the entries.
func (w *writer) preface(names []string) error {
	w.b = binary.BigEndian.AppendUint16(append(w.b[:0], magic...), formatVersion)
	if _, err := w.w.Write(w.b); err != nil {
		return err
	}
	w.begin(chunkHead)
	w.b = w.watch.now().append(w.b)
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

// all writes the chunks of entries. A stamp is not later than what is read of the caches'
// clocks after it: an entry may so become older than it is, never younger.
func (w *writer) all(ctx context.Context, caches []*Cache, all []kept) error {
	for i := 0; i < len(all); {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.begin(chunkEntries)
		w.b = w.watch.now().append(w.b)
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

func (w *writer) entry(e *kept, now time.Duration) {
	life, rest := e.life, uint32(0)
	var flags byte
	if e.owner&failedBit != 0 {
		flags |= savedFailed
		life, rest = 0, seconds(max(time.Duration(e.life)*time.Second-now, 0))
	}
	if e.owner&doBit != 0 {
		flags |= savedDO
	}
	if e.owner&cdBit != 0 {
		flags |= savedCD
	}
	start := len(w.b)
	w.b = append(w.b, 0, 0, 0, 0, entryHeadLen, flags)
	w.b = binary.BigEndian.AppendUint16(w.b, e.cache)
	w.b = binary.BigEndian.AppendUint32(w.b, life)
	w.b = binary.BigEndian.AppendUint64(w.b, uint64(min(max(e.expires-now, -maxLeft), maxLeft)))
	w.b = binary.BigEndian.AppendUint32(w.b, rest)
	w.b = e.packed.Append(w.b)
	binary.BigEndian.PutUint32(w.b[start:], uint32(len(w.b)-start-4))
	w.entries++
}
