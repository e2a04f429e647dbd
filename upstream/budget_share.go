package upstream

import "time"

// BudgetShare is the part of each budget that this process may use, while another one sends queries to the same
// addresses.
type BudgetShare uint8

const (
	// WholeBudget: no other process sends queries.
	WholeBudget BudgetShare = iota
	// HalfBudget: another process has the other half of the rate and of the burst.
	HalfBudget
	// NoBudget: another process has the whole budget. Queries wait.
	NoBudget
)

// part returns the share as a number.
func (s BudgetShare) part() float64 {
	switch s {
	case HalfBudget:
		return 0.5
	case NoBudget:
		return 0
	}
	return 1
}

// SetShare sets the part of all budgets that this process may use, present and future ones. Tokens beyond it are lost, so that two
// processes together never have more than a budget, if one gives its part away before the other takes it.
func (bs *Budgets) SetShare(s BudgetShare) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.share = s
	now := time.Now()
	for _, b := range bs.all {
		b.setPart(s.part(), now)
	}
}

// Share returns what was set with SetShare; WholeBudget at first.
func (bs *Budgets) Share() BudgetShare {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.share
}

// size returns how many tokens the bucket holds; b is locked.
func (b *budget) size() float64 {
	if b.part == 0 {
		return 0
	}
	return max(1, b.burst*b.part)
}

// setPart changes part.
func (b *budget) setPart(part float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.part = part
	b.tokens = min(b.tokens, b.size())
	b.serve(now)
}
