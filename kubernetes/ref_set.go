package kubernetes

import (
	"iter"
	"slices"
)

// refSet is the values at one address. Nearly always it is one; several are kept in order,
// each once. The view's lock guards it.
type refSet[T comparable] struct {
	one  T             // the zero value if there are several
	many *blockList[T] // nil if there is one
}

// blockList is an ordered list in blocks, none of which is empty. A change moves one block:
// with 20,000 Services on one address and 100 addresses in a slice, moving the whole list
// would be 16 MB under the lock.
type blockList[T comparable] [][]T

// blockSize is the capacity of a block. A larger one moves more with each change, a smaller
// one makes the list of blocks longer.
const blockSize = 128

// addRef adds x at an address. It replaces a value that compares equal.
func addRef[T comparable](m map[addrKey]refSet[T], at addrKey, x T, compare func(a, b T) int) {
	r, ok := m[at]
	switch {
	case ok && r.many != nil:
		r.many.put(x, compare)
		return
	case !ok || r.one == x || compare(r.one, x) == 0:
		r.one = x
	default:
		pair := []T{r.one, x}
		if compare(r.one, x) > 0 {
			pair[0], pair[1] = x, r.one
		}
		r = refSet[T]{many: &blockList[T]{pair}}
	}
	m[at] = r
}

// dropRef removes x, but no other value that compares equal, from an address.
func dropRef[T comparable](m map[addrKey]refSet[T], at addrKey, x T, compare func(a, b T) int) {
	r, ok := m[at]
	switch {
	case !ok:
	case r.many == nil:
		if r.one == x {
			delete(m, at)
		}
	default:
		r.many.drop(x, compare)
		if b := *r.many; len(b) == 1 && len(b[0]) == 1 {
			m[at] = refSet[T]{one: b[0][0]}
		}
	}
}

// search returns the position of x, or where it belongs.
func (b blockList[T]) search(x T, compare func(a, b T) int) (block, i int, found bool) {
	block, found = slices.BinarySearchFunc(b, x, func(have []T, x T) int { return compare(have[0], x) })
	if found {
		return block, 0, true
	}
	block = max(0, block-1) // the last one that does not begin after x
	i, found = slices.BinarySearchFunc(b[block], x, compare)
	return block, i, found
}

func (b *blockList[T]) put(x T, compare func(a, b T) int) {
	at, i, found := b.search(x, compare)
	list := *b
	if found {
		list[at][i] = x
		return
	}
	block := slices.Insert(list[at], i, x)
	list[at] = block
	if len(block) <= blockSize {
		return
	}
	half := len(block) / 2
	rest := slices.Clone(block[half:])
	clear(block[half:]) // let the garbage collector have them
	list[at] = block[:half]
	*b = slices.Insert(list, at+1, rest)
}

func (b *blockList[T]) drop(x T, compare func(a, b T) int) {
	at, i, found := b.search(x, compare)
	list := *b
	if !found || list[at][i] != x {
		return
	}
	list[at] = slices.Delete(list[at], i, i+1)
	if len(list[at]) == 0 {
		*b = slices.Delete(list, at, at+1)
		return
	}
	for _, left := range [...]int{at, at - 1} {
		if left >= 0 && left+1 < len(list) && len(list[left])+len(list[left+1]) <= blockSize/2 {
			list[left] = append(list[left], list[left+1]...)
			*b = slices.Delete(list, left+1, left+2)
			return
		}
	}
}

// each yields the values in order.
func (r refSet[T]) each(yield func(T) bool) {
	if r.many == nil {
		yield(r.one)
		return
	}
	r.many.from(0, 0, yield)
}

// after yields the values after last in order, all of them if last is the zero value.
func (r refSet[T]) after(last T, compare func(a, b T) int) iter.Seq[T] {
	return func(yield func(T) bool) {
		var start T
		switch {
		case last == start:
			r.each(yield)
		case r.many != nil:
			at, i, found := r.many.search(last, compare)
			if found {
				i++
			}
			r.many.from(at, i, yield)
		case compare(r.one, last) > 0:
			yield(r.one)
		}
	}
}

// from yields the values from position i of a block on.
func (b blockList[T]) from(block, i int, yield func(T) bool) {
	for ; block < len(b); block, i = block+1, 0 {
		for _, x := range b[block][i:] {
			if !yield(x) {
				return
			}
		}
	}
}
