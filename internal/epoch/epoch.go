// Package epoch invalidates copies of answers. Each group of answers has a counter. The
// owner of the answers increments it when an answer of the group changes. The holder of a
// copy compares it with its value when the copy was made.
//
// The counters may be in memory that is shared with the kernel, where an eBPF program
// compares them. Incrementing one is an atomic addition and no system call.
package epoch

import (
	"sync"
	"sync/atomic"
	"time"
)

// Mark is a group and the value of its counter. A copy that was made with it is valid as
// long as the counter has that value.
type Mark struct {
	// Index is the counter's index in the memory of the table.
	Index uint32
	Value uint64
	// Serial is the index of a value of [Table.AcquireValue] that is the serial of the copy's SOA record; 0: the
	// record stays as it was.
	Serial uint32
}

// Lifetime is how long a copy is valid unless its mark ends it earlier, and which TTLs it has. Times are
// on the clock of the owner.
type Lifetime struct {
	// Expires is when the owner must be asked again; 0 is never.
	Expires time.Duration
	// Where CountsDown is set, the TTLs of all records are what is left until Ends, in seconds rounded up and
	// at most Life. Else they stay as they are.
	Ends       time.Duration
	Life       uint32
	CountsDown bool
}

// TTL returns the TTL at now of a copy whose TTLs count down.
func (l *Lifetime) TTL(now time.Duration) uint32 {
	if l.Ends <= now {
		return 0
	}
	return uint32(min((l.Ends-now+time.Second-1)/time.Second, time.Duration(l.Life))) //nolint:gosec // at most Life
}

// Table is a table of counters. The first counter is for all groups and is incremented with
// each of the others. A nil Table counts nothing. Table is safe for concurrent use.
//
// No copy outlives its answer if both sides keep this order: the owner increments the
// counter before the new answer is visible, while holding the lock that guards the answer.
// The copier reads [Table.Any], gets the answer and its mark, and discards the copy if Any
// has changed.
type Table struct {
	words []atomic.Uint64 // the counter for all groups, then a power of two
	all   []atomic.Uint64 // words, and behind them the values
	base  uint32

	mu     sync.Mutex
	values []Value // not acquired
}

// values is the number of values of a table: two for each view of a cluster or one for each
// hosts table, and as many again while a reload replaces them. There is nearly always one of each.
const values = 16

// Words returns the number of words that a table of 1<<bits groups needs.
func Words(bits int) int { return 1<<bits + 1 + values }

// New makes a table of 1<<bits groups in words, which has at least [Words] elements. base is
// the index of the first of them for marks and values, in the memory that is shared with
// those who compare.
func New(words []atomic.Uint64, base uint32, bits int) *Table {
	n := 1<<bits + 1
	t := &Table{words: words[:n], all: words[:n+values], base: base}
	for i := range values {
		t.values = append(t.values, Value{Index: base + uint32(n+i), word: &words[n+i]})
	}
	return t
}

// Value is a number that many copies contain, such as the serial of a zone. It is inserted
// when a copy is served, so that it may change without invalidating the copies. The zero
// Value ignores what is stored.
type Value struct {
	// Index is the index in the memory of the table. It is not 0.
	Index uint32
	word  *atomic.Uint64
}

// Store sets the number. Call it before the number is visible elsewhere.
func (v Value) Store(n uint32) {
	if v.word != nil {
		v.word.Store(uint64(n))
	}
}

// AcquireValue returns a Value that is not in use, or the zero Value if there is none.
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

// Release returns v to the table. No copy with it may be served any more.
func (t *Table) Release(v Value) {
	if t == nil || v.word == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.values = append(t.values, v)
}

// Any returns the counter of all groups.
func (t *Table) Any() uint64 {
	if t == nil {
		return 0
	}
	return t.words[0].Load()
}

// Bump increments the counter of hash's group.
func (t *Table) Bump(hash uint64) {
	if t == nil {
		return
	}
	t.words[0].Add(1)
	t.words[t.index(hash)].Add(1)
}

// BumpAll increments every counter: all copies end.
func (t *Table) BumpAll() {
	if t == nil {
		return
	}
	for i := range t.words {
		t.words[i].Add(1)
	}
}

// BumpAny increments the counter for all groups only. Copies that were marked with one group
// stay valid.
func (t *Table) BumpAny() {
	if t != nil {
		t.words[0].Add(1)
	}
}

// Mark returns the mark of a copy that depends on hash's group.
func (t *Table) Mark(hash uint64) Mark { return t.mark(t.index(hash)) }

// Watch is a mark and its counter, for copies that are compared in this process. Only [Table.Watch]
// makes one.
type Watch struct {
	counter, serial *atomic.Uint64
	value           uint64
}

// Has reports whether m is a mark of t, or of one of its values.
func (t *Table) Has(m Mark) bool {
	return t != nil && m.Index >= t.base && m.Index-t.base < uint32(len(t.all)) //nolint:gosec // below 2^32, see New
}

// Watch returns the watch of a mark of t.
func (t *Table) Watch(m Mark) Watch {
	w := Watch{counter: &t.all[m.Index-t.base], value: m.Value}
	if m.Serial != 0 {
		w.serial = &t.all[m.Serial-t.base]
	}
	return w
}

// Holds reports whether a copy with the mark is valid.
func (w *Watch) Holds() bool { return w.counter.Load() == w.value }

// HasSerial reports whether the mark has the serial of a SOA record.
func (w *Watch) HasSerial() bool { return w.serial != nil }

// Serial returns the serial of the SOA record of a copy; 0 if its mark has none.
func (w *Watch) Serial() uint32 {
	if w.serial == nil {
		return 0
	}
	return uint32(w.serial.Load()) //nolint:gosec // [Value.Store] has stored a uint32
}

// MarkAny returns the mark of a copy that any change ends.
func (t *Table) MarkAny() Mark { return t.mark(0) }

func (t *Table) mark(at uint64) Mark {
	return Mark{Index: t.base + uint32(at), Value: t.words[at].Load()}
}

func (t *Table) index(hash uint64) uint64 { return 1 + hash&uint64(len(t.words)-2) }
