// Package epoch is how copies of answers learn that they are no longer true: counters,
// one for each group of answers, that whoever owns the answers moves when one of a group
// changes, and that whoever keeps a copy compares with what it was when the copy was made.
//
// The counters may lie in memory that is shared with the kernel, whose program compares
// there: moving one is an addition to a word, and takes no system call.
package epoch

import (
	"sync"
	"sync/atomic"
)

// Mark is a group and where its counter stood. A copy that was made then is good for as
// long as the counter stands there.
type Mark struct {
	// Index is the counter's place in the memory that the table was made over.
	Index uint32
	Value uint64
	// Serial is the index of a [AcquireValue] that is the serial of the copy's SOA record; 0: the
	// record stays as it was.
	Serial uint32
}

// Table is counters. The first is that of all groups together, and moves with each. A nil
// Table counts nothing. It is safe for concurrent use.
//
// The order makes copies safe: an owner moves the counter before anybody can see the new
// answer, under the lock by which it is seen; a copier looks at [Table.Any] first, gets
// its answer, takes the mark, and lets the copy go if Any has moved meanwhile.
type Table struct {
	words []atomic.Uint64 // a power of two, and one before it
	base  uint32

	mu     sync.Mutex
	values []Value // that nobody has
}

// values is how many values a table has: two for each view of a cluster, of which there is
// nearly always one, and as many again for those that come in the place of others at a
// reload. Who finds none left does without.
const values = 16

// Words is the number of words that a table of 1<<bits groups takes.
func Words(bits int) int { return 1<<bits + 1 + values }

// New makes a table of 1<<bits groups over words, of which it takes [Words]. They begin at
// base in the memory that marks are about, and are shared with whoever compares.
func New(words []atomic.Uint64, base uint32, bits int) *Table {
	n := 1<<bits + 1
	t := &Table{words: words[:n], base: base}
	for i := range values {
		t.values = append(t.values, Value{Index: base + uint32(n+i), word: &words[n+i]})
	}
	return t
}

// Value is a number that stands in many copies, such as the serial of a zone: whoever gives
// a copy puts in what the number is at that moment, so that it may change without their end.
// The zero Value is none, and takes what is stored.
type Value struct {
	// Index is its place in the memory that the table was made over, not 0.
	Index uint32
	word  *atomic.Uint64
}

// Store sets the number. It is to be stored before anybody else can see it.
func (v Value) Store(n uint32) {
	if v.word != nil {
		v.word.Store(uint64(n))
	}
}

// AcquireValue gives one that nobody else has, the zero Value if there is none left.
func (t *Table) AcquireValue() (v Value) {
	if t == nil {
		return Value{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.values); n > 0 {
		v, t.values = t.values[n-1], t.values[:n-1]
	}
	return v
}

// Release gives v back when no copy with it can be given any more.
func (t *Table) Release(v Value) {
	if t == nil || v.word == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.values = append(t.values, v)
}

// Any is the counter of all groups.
func (t *Table) Any() uint64 {
	if t == nil {
		return 0
	}
	return t.words[0].Load()
}

// Bump moves the counter of the group that hash falls into.
func (t *Table) Bump(hash uint64) {
	if t == nil {
		return
	}
	t.words[0].Add(1)
	t.words[t.index(hash)].Add(1)
}

// BumpAll moves every counter: nothing that was copied is good any more.
func (t *Table) BumpAll() {
	if t == nil {
		return
	}
	for i := range t.words {
		t.words[i].Add(1)
	}
}

// BumpAny moves the counter of all groups and of no other: what hangs on one group only
// stays good.
func (t *Table) BumpAny() {
	if t != nil {
		t.words[0].Add(1)
	}
}

// Mark is the mark of a copy that hangs on the group of hash.
func (t *Table) Mark(hash uint64) Mark { return t.mark(t.index(hash)) }

// MarkAny is the mark of a copy that any change ends.
func (t *Table) MarkAny() Mark { return t.mark(0) }

func (t *Table) mark(at uint64) Mark {
	return Mark{Index: t.base + uint32(at), Value: t.words[at].Load()}
}

func (t *Table) index(hash uint64) uint64 { return 1 + hash&uint64(len(t.words)-2) }
