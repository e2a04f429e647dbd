package resolver

import (
	"net/netip"
	"slices"
)

// maxNetSets is how many different lists of networks the ACLs of a listener may have for replies that depend on
// them to be copied.
const maxNetSets = 64

// clientClasses tells the clients apart that ACLs may treat differently: whatever name and type they ask for, the
// verdicts on clients of one class are the same. A nil clientClasses has no classes.
type clientClasses struct{ nets []netSet }

// newClientClasses returns the classes of the ACLs of zones; nil if there are none, or if there are too many.
func newClientClasses(zones []*Zone) *clientClasses {
	c, found := new(clientClasses), false
	for _, z := range zones {
		if z.ACL == nil {
			continue
		}
		found = true
		if !c.add(z.ACL) {
			return nil
		}
	}
	if !found {
		return nil
	}
	return c
}

// add adds the networks of a; false if there are too many.
func (c *clientClasses) add(a *ACL) bool {
	for i := range a.rules {
		for _, p := range a.rules[i].policies {
			if p.nets == nil || slices.ContainsFunc(c.nets, func(s netSet) bool { return slices.Equal(s, p.nets) }) {
				continue
			}
			if len(c.nets) == maxNetSets {
				return false
			}
			c.nets = append(c.nets, p.nets)
		}
	}
	return true
}

// of returns the class of a client: a bit for each list of networks, which is set if the list has the client.
func (c *clientClasses) of(client netip.Addr) (class uint64) {
	client = client.Unmap().WithZone("") // as in [ACL.judge]
	for i, s := range c.nets {
		if s.has(client) {
			class |= 1 << i
		}
	}
	return class
}
