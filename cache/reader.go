package cache

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Read puts what Write has written into caches of the same names; what has no cache
// there, has expired beyond use, is no answer that the cache would keep, or is there
// already in a fresher form, is passed over. It reads nothing behind the end of the
// stream, and allocates no more than a chunk and what the caches take, whatever the stream
// claims. It returns the number of answers taken. On an error those before it are taken.
func Read(ctx context.Context, r io.Reader, caches map[string]*Cache) (int, error) {
	in := reader{chunks: chunks{r: r}, watch: newWatch(), caches: caches}
	_, err := in.read(ctx)
	return in.taken, err
}

// Check reads a stream to its end as [Read] does, without taking anything, and says how
// long ago it was written and how many answers it has.
func Check(ctx context.Context, r io.Reader) (age time.Duration, answers int, err error) {
	in := reader{chunks: chunks{r: r}, watch: newWatch()}
	age, err = in.read(ctx)
	return age, int(in.entries), err
}

// shelf is a cache of which the stream has the name.
type shelf struct {
	cache *Cache        // nil where there is none of that name
	now   time.Duration // on its clock, not later than elapsed was measured
}

// reader takes a stream apart.
type reader struct {
	chunks
	watch   *watch
	caches  map[string]*Cache
	shelves map[uint16]*shelf
	elapsed time.Duration // since the entries at hand were written
	q       wire.Query
	entries uint32
	taken   int
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
		return 0, fmt.Errorf("%w: chunk %d is where its head should be", ErrStream, t)
	}
	if age, err = r.since(b); err != nil {
		return 0, err
	}
	r.shelves = make(map[uint16]*shelf)
	for t != chunkEnd {
		if err := ctx.Err(); err != nil {
			return age, err
		}
		if t, b, err = r.next(); err != nil {
			return age, err
		}
		if err := r.chunk(t, b); err != nil {
			return age, err
		}
	}
	return age, nil
}

// since is how long ago what begins with the stamp in b was written.
func (r *reader) since(b []byte) (time.Duration, error) {
	then, ok := readStamp(b)
	if !ok {
		return 0, fmt.Errorf("%w: no time of writing", ErrStream)
	}
	d, ok := r.watch.now().since(then)
	if !ok {
		return 0, fmt.Errorf("%w: it was written later than now, so the clock was set back and nobody knows how old it is", ErrStream)
	}
	return min(d, maxLeft), nil
}

func (r *reader) chunk(t chunkType, b []byte) error {
	switch t {
	case chunkName:
		if len(b) < 2 {
			return fmt.Errorf("%w: a cache without a name", ErrStream)
		}
		r.shelves[binary.BigEndian.Uint16(b)] = &shelf{cache: r.caches[string(b[2:])]}
	case chunkEntries:
		return r.page(b)
	case chunkEnd:
		if len(b) < 4 || binary.BigEndian.Uint32(b) != r.entries {
			return fmt.Errorf("%w: %d answers came, and it says otherwise", ErrStream, r.entries)
		}
	}
	return nil
}

// page reads a chunk of entries.
func (r *reader) page(b []byte) (err error) {
	for _, s := range r.shelves {
		if s.cache != nil {
			s.now = s.cache.store.clock()
		}
	}
	if r.elapsed, err = r.since(b); err != nil {
		return err
	}
	b = b[stampLen:]
	for len(b) > 0 {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			return fmt.Errorf("%w: an answer that is longer than its chunk", ErrStream)
		}
		end := 4 + int(binary.BigEndian.Uint32(b))
		if err := r.entry(b[4:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// entry reads one. What is well-formed but not to be taken is no error.
func (r *reader) entry(b []byte) error {
	if len(b) < entryHeadLen || int(b[0]) < entryHeadLen || int(b[0]) > len(b) {
		return fmt.Errorf("%w: an answer without a head", ErrStream)
	}
	r.entries++
	at := r.shelves[binary.BigEndian.Uint16(b[2:])]
	if at == nil || at.cache == nil || b[1]&^savedFlags != 0 {
		return nil
	}
	s := saved{
		life: time.Duration(binary.BigEndian.Uint32(b[4:])) * time.Second,
		left: time.Duration(binary.BigEndian.Uint64(b[8:])),
		rest: time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Second,

		failed: b[1]&savedFailed != 0,
	}
	s.left -= r.elapsed
	s.rest -= r.elapsed
	if r.take(b, at, s) {
		r.taken++
	}
	return nil
}

// take puts the answer in b, which has a head, into a cache, and reports whether it does. One
// that clients would trip over costs no other.
func (r *reader) take(b []byte, at *shelf, s saved) bool {
	resp, err := r.q.Restore(b[b[0]:], b[1]&savedDO != 0, b[1]&savedCD != 0)
	return err == nil && s.left <= maxLeft && s.left >= -2*maxLeft && at.cache.restore(&r.q, &resp, s, at.now)
}

// saved is what is known of an answer besides itself.
type saved struct {
	life time.Duration // its whole life where it comes from; 0 if unknown
	left time.Duration // of that life; 0 and less since it has ended
	rest time.Duration // how long nobody is to ask anew; less than 0 since somebody may
	// failed says that it has ended, and asking anew has failed.
	failed bool
}

// restore keeps resp, the reply to q, which has been kept elsewhere before, and reports
// whether it does. The directive judges it as it judges what comes from an upstream, but
// its age counts, and where two lives differ the one that ends first.
func (c *Cache) restore(q *wire.Query, resp *wire.Response, sv saved, now time.Duration) bool {
	v := c.judge(q, resp)
	if !v.keep || !c.Covers(q.Name()) {
		return false
	}
	left := min(sv.left, v.life)
	if sv.life > 0 {
		left = min(left, v.life-(sv.life-sv.left))
	}
	k := c.key(q)
	e := slot{
		packed: resp.Packed, expires: now + left, life: seconds(v.life), hash: k.hash, owner: k.owner | uint32(v.kind),
	}
	if left <= 0 {
		if !c.usable(&e, now) {
			return false
		}
		if sv.failed {
			e.rest(now + min(max(sv.rest, 0), c.claim()))
		}
	}
	if c.cfg.NXDomainCut && cuts(q, resp) {
		e.owner |= cutBit
	}
	s := k.part.shard
	s.mu.Lock()
	taken := s.restore(&k, &e, now)
	s.mu.Unlock()
	if taken {
		s.store.trim(s)
	}
	return taken
}

// restore puts e under k if what is there is no fresher; s is locked.
func (s *shard) restore(k *key, e *slot, now time.Duration) bool {
	p := k.part
	l := &p.lists[e.owner&kindBit]
	if p.closed || l.limit == 0 {
		return false
	}
	if i := s.find(k); i != none {
		if !p.cache.outdoes(e, s.at(i), now) {
			return false
		}
		s.remove(i)
	}
	e.used = s.tick(now) << hitBits
	s.insert(p, l, e)
	return true
}

// outdoes reports whether e, which comes from elsewhere, is better than old: an answer than
// a failure, what lives than what rests, and else what was asked for later.
func (c *Cache) outdoes(e, old *slot, now time.Duration) bool {
	if failed, before := e.packed.Rcode() == wire.ServFail, old.packed.Rcode() == wire.ServFail; failed != before {
		return before || !old.alive(now) && !c.usable(old, now)
	}
	if e.owner&failedBit != 0 || old.owner&failedBit != 0 {
		return e.alive(now) && !old.alive(now)
	}
	return e.born() > old.born()
}

// born is when the entry came from upstream, as far as its life tells, which is none of
// those with failedBit.
func (e *slot) born() time.Duration { return e.expires - time.Duration(e.life)*time.Second }
