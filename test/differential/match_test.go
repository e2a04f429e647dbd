package differential

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// applyQueryRewrites is c with CoreDNS's answer to the query that the known differences have it asked, and
// those that changed the query.
func applyQueryRewrites(table []*knownDifference, c comparison) (comparison, []*knownDifference) {
	var needed []*knownDifference
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

// expectedView returns the view that the agent must give by the known differences, and the ones
// that changed it. TTLs are compared exactly: one that a known difference lowers must not count as
// unchanged because a cache could have lowered it as far.
func expectedView(table []*knownDifference, c comparison) (view, []*knownDifference) {
	var needed []*knownDifference
	for _, a := range table {
		if a.expect == nil {
			continue
		}
		given := c
		given.view = c.view.clone()
		v, ok := a.expect(given)
		if ok && !gocmp.Equal(v, c.view) {
			c.view = v
			needed = append(needed, a)
		}
	}
	return c.view, needed
}

// matchKnown says whether the known differences make CoreDNS's view into the agent's,
// and marks those that were needed.
func matchKnown(table []*knownDifference, c comparison, agent view, same func(a, b view) bool) bool {
	c, needed := applyQueryRewrites(table, c)
	if len(needed) == 0 || !same(c.view, agent) {
		want, more := expectedView(table, c)
		if !same(want, agent) {
			return false
		}
		needed = append(needed, more...)
	}
	for _, a := range needed {
		a.uses.Add(1)
	}
	return true
}

// reportUnused fails the test for each entry that no query needed.
func reportUnused(t *testing.T, table []*knownDifference) {
	for _, a := range table {
		t.Logf("%d differences: %s", a.uses.Load(), a.reason)
		if a.uses.Load() == 0 && !a.rare {
			t.Errorf("no difference needs this entry any more: %s", a.reason)
		}
	}
}
