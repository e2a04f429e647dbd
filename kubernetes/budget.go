package kubernetes

// Budget is how many steps the answers to one query may still take, where nobody may be
// kept waiting. What tenants create decides how many objects an answer has to look at: so
// each is counted, and what would take more steps than are left is [Large]. A nil Budget
// has no end. It is for one goroutine at a time.
//
// A step is what it costs to look at one endpoint, port or slice, or to copy one address:
// some 10 ns. What costs more takes several of them.
type Budget struct{ left int }

const (
	// readerSteps is what one query may take of a reader, which has other clients' queries
	// behind it: 2,048 addresses, or 128 records of other types, in at most 50 µs. Half
	// would send answers of a hundred records to a worker, which adds some microseconds to
	// each; with double it would be 100 µs, and a few hundred such queries a second a
	// percent or more of the reader.
	readerSteps = 2048
	// recordSteps is what it takes to find an object in the index, or to make one record
	// out of a name.
	recordSteps = 16
	// seenSteps is what a look into a set of what was written takes.
	seenSteps = 4
)

// Refill makes b what a query on a reader has.
func (b *Budget) Refill() { b.left = readerSteps }

// take takes n steps. Where it is false there are none left, for all that comes: the
// caller returns at once, with whatever it has.
func (b *Budget) take(n int) bool {
	if b == nil {
		return true
	}
	b.left -= n
	return b.left >= 0
}

// spent reports whether more was to be taken than was there.
func (b *Budget) spent() bool { return b != nil && b.left < 0 }
