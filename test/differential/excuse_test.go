package differential

import "testing"

// expected is the view that the agent must give by the allowances, and those
// that changed something on the way there.
func expected(table []*allowance, c situation, same func(a, b view) bool) (view, []*allowance) {
	var needed []*allowance
	for _, a := range table {
		given := c
		given.view = c.view.clone()
		v, ok := a.expect(given)
		if ok && !same(v, c.view) {
			c.view = v
			needed = append(needed, a)
		}
	}
	return c.view, needed
}

// excuse says whether the allowances make CoreDNS's view into the agent's,
// and marks those that were needed.
func excuse(table []*allowance, c situation, agent view, same func(a, b view) bool) bool {
	want, needed := expected(table, c, same)
	if !same(want, agent) {
		return false
	}
	for _, a := range needed {
		a.used++
	}
	return true
}

// reportUnused fails the test for each entry that no query needed.
func reportUnused(t *testing.T, table []*allowance) {
	for _, a := range table {
		t.Logf("%d differences: %s", a.used, a.reason)
		if a.used == 0 {
			t.Errorf("no difference needs this entry any more: %s", a.reason)
		}
	}
}
