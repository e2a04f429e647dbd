package tunnel

const MaxPairs = maxPairs

// Pairs returns the number of pairs in the table.
func (d *Detector) Pairs() int { return len(d.pairs) }
