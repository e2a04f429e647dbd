package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

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
	// skipFailures: SERVFAIL is not stored.
	skipFailures bool
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
	return e.remaining <= maxRemaining && e.remaining >= -2*maxRemaining && to.cache.restore(&r.q, &resp, e, to.now)
}

// savedEntry is what a snapshot says of a reply.
type savedEntry struct {
	ttl       time.Duration // the original TTL; 0 if unknown
	remaining time.Duration // of the TTL; 0 or less after the expiry
	retry     time.Duration // until a refresh may be tried; less than 0 if it may
	failed    bool          // it has expired, and a refresh has failed
}

// restore stores resp, the reply to q, which another cache has stored before, and reports
// whether it did. It is classified as if it came from upstream, but has its age; of two
// expiries the earlier one counts.
func (c *Cache) restore(q *wire.Query, resp *wire.Response, sv savedEntry, now time.Duration) bool {
	v := c.classify(q, resp)
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
		s.store.enforceBudget(s)
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
	if old != nil && k.matches(old) && !p.cache.betterThan(e, old, now) {
		return false
	}
	p.replace(k.hash, old, e, now)
	return true
}

// betterThan reports whether e, from a snapshot, is better than old: an answer is better than
// a failure, an entry that is alive than one that backs off, and otherwise the newer one.
func (c *Cache) betterThan(e, old *entry, now time.Duration) bool {
	if failed, before := e.packed.Rcode() == wire.ServFail, old.packed.Rcode() == wire.ServFail; failed != before {
		return before || !c.servable(old, now)
	}
	if (e.flags|old.flags)&failedFlag != 0 {
		return e.alive(now) && !old.alive(now)
	}
	return e.fetchedAt() > old.fetchedAt()
}
