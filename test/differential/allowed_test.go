package differential

import "testing"

// allowance is a difference that is meant.
type allowance struct {
	reason string
	// expect returns the view that the agent must give where CoreDNS gives
	// this one. It returns false for a query that the entry is not about.
	expect func(q query, coredns view) (view, bool)
	used   bool
}

// allowed are the differences that are meant. The table is used by one test
// at a time.
func allowed() []*allowance {
	return nil
}

// excuse says whether the allowances make CoreDNS's view into the agent's,
// and marks those that were needed.
func excuse(table []*allowance, q query, coredns, agent view, same func(a, b view) bool) bool {
	var needed []*allowance
	for _, a := range table {
		expected, ok := a.expect(q, coredns.clone())
		if ok && !same(expected, coredns) {
			coredns = expected
			needed = append(needed, a)
		}
	}
	if !same(coredns, agent) {
		return false
	}
	for _, a := range needed {
		a.used = true
	}
	return true
}

// reportUnused fails the test for each entry that no query needed.
func reportUnused(t *testing.T, table []*allowance) {
	for _, a := range table {
		if !a.used {
			t.Errorf("no difference needs this entry any more: %s", a.reason)
		}
	}
}
