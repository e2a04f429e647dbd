package fastpath

// Usage returns the number of answers in the table, also of those that have expired, and the most that
// there may be.
func (p *Program) Usage() (answers, limit int) { return p.table.usage(), slotCount }

// usage returns the number of slots with an answer.
func (t *table) usage() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.info {
		if t.info[i].reporter != nil {
			n++
		}
	}
	return n
}
