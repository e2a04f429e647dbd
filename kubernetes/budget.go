package kubernetes

import "math"

// Budget counts the steps that the answers to one query may still take on a goroutine that
// must not be kept busy. Tenants decide how many objects an answer has to look at, so every
// object counts; an answer that needs more steps than are left is [OverBudget]. A nil
// Budget is unlimited. A Budget is for one goroutine at a time.
//
// A step is the cost of looking at one endpoint, port or slice, or of copying one address:
// some 10 ns. More expensive operations take several steps.
type Budget struct {
	left int
	dry  bool // see [Budget.SetDryRun]
}

const (
	// readerSteps is the budget of one query on a reader, which other clients' queries wait
	// for: 1,024 addresses or 64 records of other types, and less than 50 µs if each step
	// misses the CPU caches.
	readerSteps = 1024
	// lookupSteps is the cost of a lookup in the index, or of a record with a compressed
	// name.
	lookupSteps = 8
	// recordSteps is the cost of a record whose name must be remembered.
	recordSteps = 16
	// sliceSteps is the cost of one more slice, which is elsewhere in memory.
	sliceSteps = 4
	// dedupSteps is the cost of a lookup in a set of what has been written.
	dedupSteps = 4
)

// Refill gives b the budget of one query on a reader.
func (b *Budget) Refill() { *b = Budget{left: readerSteps} }

// SetDryRun makes b practically unlimited, and answers with it no use of the view: they neither request
// objects nor keep them in view.
func (b *Budget) SetDryRun() { *b = Budget{left: math.MaxInt, dry: true} }

// spend takes n steps. If it returns false, the budget is exhausted and stays so: the
// caller returns at once with what it has.
func (b *Budget) spend(n int) bool {
	if b == nil {
		return true
	}
	b.left -= n
	return b.left >= 0
}

// exhausted reports whether more steps were needed than there were. It is false for nil.
func (b *Budget) exhausted() bool { return b != nil && b.left < 0 }
