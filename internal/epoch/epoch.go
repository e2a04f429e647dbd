// Package epoch is how copies of answers learn that they are no longer true: counters,
// one for each group of answers, that whoever owns the answers moves when one of a group
// changes, and that whoever keeps a copy compares with what it was when the copy was made.
//
// The counters may lie in memory that is shared with the kernel, whose program compares
// there: moving one is an addition to a word, and takes no system call.
package epoch

import "sync/atomic"

// Mark is a group and where its counter stood. A copy that was made then is good for as
// long as the counter stands there.
type Mark struct {
	// Index is the counter's place in the memory that the table was made over.
	Index uint32
	Value uint64
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
}

// New makes a table of 1<<bits groups over the first 1<<bits+1 of words, which begin at
// base in the memory that marks are about, and are shared with whoever compares.
func New(words []atomic.Uint64, base uint32, bits int) *Table {
	return &Table{words: words[:1<<bits+1], base: base}
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
	t.words[t.at(hash)].Add(1)
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
func (t *Table) Mark(hash uint64) Mark { return t.mark(t.at(hash)) }

// MarkAny is the mark of a copy that any change ends.
func (t *Table) MarkAny() Mark { return t.mark(0) }

func (t *Table) mark(at uint64) Mark {
	return Mark{Index: t.base + uint32(at), Value: t.words[at].Load()}
}

func (t *Table) at(hash uint64) uint64 { return 1 + hash&uint64(len(t.words)-2) }
