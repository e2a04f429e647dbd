package differential

import "testing"

// requery is c with CoreDNS's answer to the query that the allowances have it asked, and
// those that changed the query.
func requery(table []*allowance, c situation) (situation, []*allowance) {
	var needed []*allowance
	for _, a := range table {
		if a.query == nil {
			continue
		}
		if q, ok := a.query(c); ok {
			c.query, c.view = q, c.ask(q)
			needed = append(needed, a)
		}
	}
	return c, needed
}

// expected is the view that the agent must give by the allowances, and those
// that changed something on the way there.
func expected(table []*allowance, c situation, same func(a, b view) bool) (view, []*allowance) {
	var needed []*allowance
	for _, a := range table {
		if a.expect == nil {
			continue
		}
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
	c, needed := requery(table, c)
	if len(needed) == 0 || !same(c.view, agent) {
		want, more := expected(table, c, same)
		if !same(want, agent) {
			return false
		}
		needed = append(needed, more...)
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
