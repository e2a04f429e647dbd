package kubernetes

// Budget is how many steps the answers to one query may still take, where nobody may be
// kept waiting. What tenants create decides how many objects an answer has to look at: so
// each is counted, and what would take more steps than are left is [OverBudget]. A nil Budget
// has no end. It is for one goroutine at a time.
//
// A step is what it costs to look at one endpoint, port or slice, or to copy one address:
// some 10 ns. What costs more takes several of them.
type Budget struct{ left int }

const (
	// readerSteps is what one query may take of a reader, which has other clients' queries
	// behind it: 1,024 addresses, or 64 records of other types, and less than 50 µs where
	// each step misses the caches. With half of it replies that fill a packet would go to a
	// worker, which costs each some microseconds; double would be 100 µs.
	readerSteps = 1024
	// lookupSteps is what it takes to find an object in the index, or to make a record of a
	// name that is mostly written already.
	lookupSteps = 8
	// recordSteps is what it takes to make a record of a name that has to be remembered.
	recordSteps = 16
	// sliceSteps is what it takes to look at one more slice: it lies elsewhere in memory.
	sliceSteps = 4
	// dedupSteps is what a look into a set of what was written takes.
	dedupSteps = 4
)

// Refill makes b what a query on a reader has.
func (b *Budget) Refill() { b.left = readerSteps }

// spend takes n steps. Where it is false there are none left, for all that comes: the
// caller returns at once, with whatever it has.
func (b *Budget) spend(n int) bool {
	if b == nil {
		return true
	}
	b.left -= n
	return b.left >= 0
}

// exhausted reports whether more was to be taken than was there.
func (b *Budget) exhausted() bool { return b != nil && b.left < 0 }
