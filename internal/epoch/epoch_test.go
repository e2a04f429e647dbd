// These tests use values, which is not exported.

package epoch

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

const (
	testBits = 3
	testBase = 100
)

// testTable is a table of eight groups, the words of these, and the first of the values.
func testTable() (*Table, []atomic.Uint64) {
	words := make([]atomic.Uint64, Words(testBits))
	return New(words, testBase, testBits), words[:1<<testBits+2]
}

// Values are numbers in the shared memory, each with one owner at a time.
func TestValues(t *testing.T) {
	words := make([]atomic.Uint64, Words(testBits))
	x := New(words, testBase, testBits)
	seen := map[uint32]Value{}
	for range values {
		v := x.AcquireValue()
		if v.Index < testBase+1<<testBits+1 || int(v.Index) >= testBase+len(words) {
			t.Fatalf("a value at %d", v.Index)
		}
		seen[v.Index] = v
	}
	if len(seen) != values {
		t.Errorf("%d values, want %d", len(seen), values)
	}
	none := x.AcquireValue()
	if none.Index != 0 {
		t.Errorf("one too many, at %d", none.Index)
	}
	none.Store(7)
	for at, v := range seen {
		v.Store(at)
		if got := words[at-testBase].Load(); got != uint64(at) {
			t.Errorf("value %d is %d", at, got)
		}
	}
	for i := range words[:1<<testBits+1] {
		if words[i].Load() != 0 {
			t.Errorf("counter %d has moved", i)
		}
	}
	x.Release(none)
	x.Release(seen[testBase+1<<testBits+3])
	if v := x.AcquireValue(); v != seen[testBase+1<<testBits+3] {
		t.Errorf("what was given back is not given again, but %+v", v)
	}
	if v := (*Table)(nil).AcquireValue(); v != (Value{}) {
		t.Errorf("nobody's value: %+v", v)
	}
	(*Table)(nil).Release(none)
}

func load(words []atomic.Uint64) (list []uint64) {
	for i := range words {
		list = append(list, words[i].Load())
	}
	return list
}

func TestTable(t *testing.T) {
	for name, c := range map[string]struct {
		move func(*Table)
		want []uint64
	}{
		"nothing":           {func(*Table) {}, []uint64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"the first":         {func(x *Table) { x.Bump(0) }, []uint64{1, 1, 0, 0, 0, 0, 0, 0, 0, 0}},
		"the last":          {func(x *Table) { x.Bump(7) }, []uint64{1, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"high bits":         {func(x *Table) { x.Bump(1<<63 | 8 | 2) }, []uint64{1, 0, 0, 1, 0, 0, 0, 0, 0, 0}},
		"two":               {func(x *Table) { x.Bump(2); x.Bump(4) }, []uint64{2, 0, 0, 1, 0, 1, 0, 0, 0, 0}},
		"all":               {(*Table).BumpAll, []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 0}},
		"what hangs on any": {(*Table).BumpAny, []uint64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			x, words := testTable()
			c.move(x)
			if got := load(words); !slices.Equal(got, c.want) {
				t.Errorf("got %d, want %d", got, c.want)
			}
			if x.Any() != c.want[0] {
				t.Errorf("Any is %d", x.Any())
			}
		})
	}
}

// A mark says where its counter stands in the memory that is shared, and no two groups
// share one.
func TestMark(t *testing.T) {
	x, words := testTable()
	x.Bump(5)
	seen := map[uint32]bool{}
	for hash := range uint64(1 << testBits) {
		m := x.Mark(hash)
		if seen[m.Index] || m.Value != words[m.Index-testBase].Load() {
			t.Errorf("hash %d: %+v", hash, m)
		}
		seen[m.Index] = true
		x.Bump(hash)
		if words[m.Index-testBase].Load() == m.Value {
			t.Errorf("hash %d: the mark still holds", hash)
		}
	}
	m := x.MarkAny()
	if m.Index != testBase || m.Value != x.Any() || seen[m.Index] {
		t.Errorf("of any: %+v", m)
	}
}

// Nobody's table is no trouble.
func TestNil(t *testing.T) {
	var x *Table
	x.Bump(1)
	x.BumpAll()
	x.BumpAny()
	if n := x.Any(); n != 0 {
		t.Errorf("Any is %d", n)
	}
}

// Who has his answer while it changes sees that it did, wherever in between he looked.
func TestCopiesOfWhatChanges(t *testing.T) {
	const rounds = 20_000
	x, words := testTable()
	var mu sync.RWMutex
	answer := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			mu.Lock()
			x.Bump(3)
			answer++
			mu.Unlock()
		}
	})
	read := func() int {
		mu.RLock()
		defer mu.RUnlock()
		return answer
	}
	for last := 0; last < rounds; {
		before := x.Any()
		kept := read()
		m := x.Mark(3)
		if x.Any() != before {
			continue
		}
		last = read()
		if good := words[m.Index-testBase].Load() == m.Value; good && kept < last {
			t.Fatalf("a copy of answer %d is good after answer %d", kept, last)
		}
	}
	wg.Wait()
}
