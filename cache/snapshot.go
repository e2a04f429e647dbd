package cache

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/wire"
)

// castagnoli is the table of CRC-32C, for which CPUs have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	chunkHeadLen = 1 + 4
	crcLen       = 4
	// chunkOverhead is what a chunk has besides its contents.
	chunkOverhead = chunkHeadLen + crcLen
)

// begin begins a chunk.
func (w *writer) begin(t chunkType) { w.b = append(w.b[:0], byte(t), 0, 0, 0, 0) }

// flush completes the chunk and writes it.
func (w *writer) flush() error {
	binary.BigEndian.PutUint32(w.b[1:], uint32(len(w.b)-chunkHeadLen))
	w.b = binary.BigEndian.AppendUint32(w.b, crc32.Checksum(w.b, castagnoli))
	_, err := w.w.Write(w.b)
	return err
}

// chunkReader reads a stream chunk by chunk, and nothing beyond its end.
type chunkReader struct {
	r io.Reader
	b []byte
}

// open reads what comes before the first chunk.
func (c *chunkReader) open() error {
	c.b = make([]byte, maxChunk+chunkOverhead)
	if err := c.fill(c.b[:preambleLen]); err != nil {
		return err
	}
	if string(c.b[:len(magic)]) != magic {
		return fmt.Errorf("%w: it does not begin with %q", ErrStream, magic)
	}
	if v := binary.BigEndian.Uint16(c.b[len(magic):]); v != formatVersion {
		return fmt.Errorf("%w: it has format version %d, this agent reads %d", ErrStream, v, formatVersion)
	}
	return nil
}

// next returns the next chunk and checks its checksum. The bytes are valid until the next
// call.
func (c *chunkReader) next() (chunkType, []byte, error) {
	if err := c.fill(c.b[:chunkHeadLen]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(c.b[1:])
	if n > maxChunk {
		return 0, nil, fmt.Errorf("%w: a chunk has %d bytes, at most %d are allowed", ErrStream, n, maxChunk)
	}
	end := chunkHeadLen + int(n)
	if err := c.fill(c.b[chunkHeadLen : end+crcLen]); err != nil {
		return 0, nil, err
	}
	if crc32.Checksum(c.b[:end], castagnoli) != binary.BigEndian.Uint32(c.b[end:]) {
		return 0, nil, fmt.Errorf("%w: wrong checksum", ErrStream)
	}
	return chunkType(c.b[0]), c.b[chunkHeadLen:end], nil
}

func (c *chunkReader) fill(b []byte) error {
	_, err := io.ReadFull(c.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is truncated", ErrStream)
	}
	return err
}

// timestamp is a time that another process can compare with its own: on the clock that
// starts with the machine and is never set, and on the wall clock for after a reboot.
type timestamp struct {
	boot [bootLen]byte // the boot ID of the machine; zero if unknown
	up   time.Duration
	wall int64 // in nanoseconds since 1970
}

const (
	bootLen      = 36 // a UUID as text
	timestampLen = bootLen + 8 + 8
)

func (s timestamp) append(b []byte) []byte {
	b = append(b, s.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.up))
	return binary.BigEndian.AppendUint64(b, uint64(s.wall))
}

// readTimestamp reads the timestamp that b begins with.
func readTimestamp(b []byte) (s timestamp, ok bool) {
	if len(b) < timestampLen {
		return s, false
	}
	copy(s.boot[:], b)
	s.up = time.Duration(binary.BigEndian.Uint64(b[bootLen:]))
	s.wall = int64(binary.BigEndian.Uint64(b[bootLen+8:]))
	return s, s.up >= 0 && s.wall >= 0
}

// since returns the time from then to s, after a reboot by the wall clock. ok is false if
// the clock was set back, so that the time is unknown.
func (s timestamp) since(then timestamp) (d time.Duration, ok bool) {
	d = time.Duration(s.wall - then.wall)
	if s.boot == then.boot && s.boot != [bootLen]byte{} {
		d = s.up - then.up
	}
	return d, d >= 0
}

// bootClock makes timestamps.
type bootClock struct {
	now func() timestamp
}

func newBootClock() *bootClock {
	var s timestamp
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(id) >= bootLen {
		copy(s.boot[:], id)
	}
	return &bootClock{now: func() timestamp {
		var up unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
			s.boot = [bootLen]byte{} // since does not use up then
		}
		s.up, s.wall = time.Duration(up.Nano()), time.Now().UnixNano()
		return s
	}}
}

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

// Read stores the entries of a snapshot in the caches of the same names, and returns how many
// it stored. It skips entries whose cache is not in caches, that are expired and not
// servable, that the cache would not store, or of which the cache has a newer one. Read reads
// nothing beyond the end of the stream, and it allocates no more than a chunk and what the
// caches take, whatever the stream says. If it returns an error, the entries before it are
// stored.
func Read(ctx context.Context, r io.Reader, caches map[string]*Cache) (int, error) {
	in := reader{chunkReader: chunkReader{r: r}, clock: newBootClock(), caches: caches}
	_, err := in.read(ctx)
	return in.stored, err
}

// ReadReturned is [Read] for the snapshot of an agent that may have had a fault: it skips SERVFAIL,
// which may be this fault.
func ReadReturned(ctx context.Context, r io.Reader, caches map[string]*Cache) (int, error) {
	in := reader{chunkReader: chunkReader{r: r}, clock: newBootClock(), caches: caches, skipFailures: true}
	_, err := in.read(ctx)
	return in.stored, err
}

// ReadKept is [Read] for the names of `keep` alone.
func ReadKept(ctx context.Context, r io.Reader, caches map[string]*Cache) (int, error) {
	in := reader{chunkReader: chunkReader{r: r}, clock: newBootClock(), caches: caches, keptOnly: true}
	_, err := in.read(ctx)
	return in.stored, err
}

// Check reads a snapshot to its end as [Read] does, but stores nothing. It returns the
// snapshot's age and the number of its entries.
func Check(ctx context.Context, r io.Reader) (age time.Duration, entries int, err error) {
	in := reader{chunkReader: chunkReader{r: r}, clock: newBootClock()}
	age, err = in.read(ctx)
	return age, int(in.entries), err
}

// namedCache is a cache that the stream has named.
type namedCache struct {
	cache *Cache        // nil if there is none of that name
	now   time.Duration // on its clock, not later than elapsed was measured
}

// reader reads a stream.
type reader struct {
	chunkReader
	clock   *bootClock
	caches  map[string]*Cache
	named   map[uint16]*namedCache // by their number in the stream
	elapsed time.Duration          // since the current chunk of entries was written
	q       wire.Query
	entries uint32
	stored  int
	// skipFailures: SERVFAIL is not stored. keptOnly: only names of `keep` are.
	skipFailures, keptOnly bool
}

func (r *reader) read(ctx context.Context) (age time.Duration, err error) {
	if err := r.open(); err != nil {
		return 0, err
	}
	t, b, err := r.next()
	if err != nil {
		return 0, err
	}
	if t != chunkHead {
		return 0, fmt.Errorf("%w: chunk type %d in place of the head", ErrStream, t)
	}
	if age, err = r.since(b); err != nil {
		return 0, err
	}
	r.named = make(map[uint16]*namedCache)
	for t != chunkEnd {
		if err := ctx.Err(); err != nil {
			return age, err
		}
		if t, b, err = r.next(); err != nil {
			return age, err
		}
		if err := r.readChunk(t, b); err != nil {
			return age, err
		}
	}
	return age, nil
}

// since returns the time since the timestamp that b begins with.
func (r *reader) since(b []byte) (time.Duration, error) {
	then, ok := readTimestamp(b)
	if !ok {
		return 0, fmt.Errorf("%w: no timestamp", ErrStream)
	}
	d, ok := r.clock.now().since(then)
	if !ok {
		return 0, fmt.Errorf("%w: its timestamp is in the future: the clock was set back, so its age is unknown", ErrStream)
	}
	return min(d, maxRemaining), nil
}

func (r *reader) readChunk(t chunkType, b []byte) error {
	switch t {
	case chunkName:
		if len(b) < 2 {
			return fmt.Errorf("%w: a cache without a name", ErrStream)
		}
		r.named[binary.BigEndian.Uint16(b)] = &namedCache{cache: r.caches[string(b[2:])]}
	case chunkEntries:
		return r.readEntries(b)
	case chunkEnd:
		if len(b) < 4 || binary.BigEndian.Uint32(b) != r.entries {
			return fmt.Errorf("%w: it has %d entries, which is not the number at its end", ErrStream, r.entries)
		}
	}
	return nil
}

// readEntries reads a chunk of entries.
func (r *reader) readEntries(b []byte) (err error) {
	for _, n := range r.named {
		if n.cache != nil {
			n.now = n.cache.store.clock()
		}
	}
	if r.elapsed, err = r.since(b); err != nil {
		return err
	}
	b = b[timestampLen:]
	for len(b) > 0 {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			return fmt.Errorf("%w: an entry is longer than its chunk", ErrStream)
		}
		end := 4 + int(binary.BigEndian.Uint32(b))
		if err := r.readEntry(b[4:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// readEntry reads one entry. An entry that is well-formed but can't be stored is no error.
func (r *reader) readEntry(b []byte) error {
	if len(b) < entryHeadLen || int(b[0]) < entryHeadLen || int(b[0]) > len(b) {
		return fmt.Errorf("%w: an entry without a head", ErrStream)
	}
	r.entries++
	to := r.named[binary.BigEndian.Uint16(b[2:])]
	if to == nil || to.cache == nil || b[1]&^savedFlags != 0 {
		return nil
	}
	e := savedEntry{
		ttl:       time.Duration(binary.BigEndian.Uint32(b[4:])) * time.Second,
		remaining: time.Duration(binary.BigEndian.Uint64(b[8:])),
		retry:     time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Second,
		failed:    b[1]&savedFailed != 0,
	}
	e.remaining -= r.elapsed
	e.retry -= r.elapsed
	if r.store(b, to, e) {
		r.stored++
	}
	return nil
}

// store stores the reply in b, which has a head, in a cache, and reports whether it did. A
// message that is malformed costs only itself.
func (r *reader) store(b []byte, to *namedCache, e savedEntry) bool {
	resp, err := r.q.Restore(b[b[0]:], b[1]&savedDO != 0, b[1]&savedCD != 0)
	if err != nil || r.skipFailures && resp.Packed.Rcode() == wire.ServFail {
		return false
	}
	if k := to.cache.key(&r.q); r.keptOnly && !k.isKept() {
		return false
	}
	return e.remaining <= maxRemaining && e.remaining >= -2*maxRemaining && to.restore(&r.q, &resp, e)
}

// savedEntry is what a snapshot says of a reply.
type savedEntry struct {
	ttl       time.Duration // the original TTL; 0 if unknown
	remaining time.Duration // of the TTL; 0 or less after the expiry
	retry     time.Duration // until a refresh may be tried; less than 0 if it may
	failed    bool          // it has expired, and a refresh has failed
}

// restore stores in the cache resp, the reply to q, which another cache has stored before, and reports
// whether it did. It is classified as if it came from upstream, but has its age; of two
// expiries the earlier one counts.
func (to *namedCache) restore(q *wire.Query, resp *wire.Response, sv savedEntry) bool {
	c, now := to.cache, to.now
	v := classify(&c.cfg, q, resp)
	if !v.cacheable || !c.Covers(q.Name()) {
		return false
	}
	remaining := min(sv.remaining, v.ttl)
	if sv.ttl > 0 {
		remaining = min(remaining, v.ttl-(sv.ttl-sv.remaining))
	}
	k := c.key(q)
	e := k.newEntry(resp.Packed, v.kind, now+remaining, v.ttl)
	if remaining <= 0 {
		if !c.servable(e, now) {
			return false
		}
		if sv.failed {
			e.backOff(now + min(max(sv.retry, 0), c.claimTime()))
		}
	}
	if c.cfg.NXDomainCut && deniesSubtree(q, resp) {
		e.flags |= cutFlag
	}
	s := k.shard.shard
	s.mu.Lock()
	stored := k.restore(e, now)
	s.mu.Unlock()
	if stored {
		k.shard.makeRoom()
	}
	return stored
}

// restore stores e under k unless the entry that is there is better; the shard is locked.
func (k *key) restore(e *entry, now time.Duration) bool {
	p := k.shard
	if p.closed || p.lists[e.kind()].lru == nil {
		return false
	}
	old := p.at(k.hash)
	if old != nil && k.matches(old) && !e.betterThan(old, p.cache, now) {
		return false
	}
	p.replace(k.hash, old, e, now)
	return true
}

// betterThan reports whether e, from a snapshot, is better than old, in c: an answer is better than
// a failure, an entry that is alive than one that backs off, and otherwise the newer one.
func (e *entry) betterThan(old *entry, c *Cache, now time.Duration) bool {
	if failed, before := e.packed.Rcode() == wire.ServFail, old.packed.Rcode() == wire.ServFail; failed != before {
		return before || !c.servable(old, now)
	}
	if (e.flags|old.flags)&failedFlag != 0 {
		return e.alive(now) && !old.alive(now)
	}
	return e.fetchedAt() > old.fetchedAt()
}
