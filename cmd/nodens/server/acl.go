package server

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ACL says which clients may ask what. It is immutable and safe for concurrent use.
type ACL struct {
	rules []rule
}

type rule struct {
	zones    []wire.Name
	policies []policy
}

// policy is what becomes of queries of types from nets; nil is all of either.
type policy struct {
	verdict marks
	types   []uint16
	nets    netSet
}

// NewACL makes the ACL of cfg.
func NewACL(cfg *config.ACL) *ACL {
	a := new(ACL)
	for _, r := range cfg.Rules {
		made := rule{zones: r.Zones}
		for _, p := range r.Policies {
			made.policies = append(made.policies, policy{verdict: verdictOf[p.Action], types: p.Types, nets: newNetSet(p.Nets)})
		}
		a.rules = append(a.rules, made)
	}
	return a
}

var verdictOf = map[config.ACLAction]marks{
	config.ACLAllow: allowed, config.ACLBlock: blocked, config.ACLDrop: dropped, config.ACLFilter: filtered,
}

// judge gives what becomes of q from client, and the zone of the rule that says so.
// What no rule speaks of is allowed; a client whose address nobody knows, of which a
// rule might speak, is blocked. It allocates nothing.
func (a *ACL) judge(q *wire.Query, client netip.Addr) (verdict marks, zone wire.Name) {
	client = client.Unmap().WithZone("")
	for i := range a.rules {
		r := &a.rules[i]
		zone := longest(r.zones, q.Name())
		if zone == "" {
			continue
		}
		if !client.IsValid() {
			return blocked, zone
		}
		for j := range r.policies {
			if p := &r.policies[j]; p.matches(q.Type, client) {
				return p.verdict, zone
			}
		}
	}
	return allowed, ""
}

func (p *policy) matches(qtype uint16, client netip.Addr) bool {
	return (p.types == nil || slices.Contains(p.types, qtype)) && (p.nets == nil || p.nets.has(client))
}

// longest is the longest of zones that name is in, "" if it is in none.
func longest(zones []wire.Name, name []byte) (found wire.Name) {
	for _, z := range zones {
		if len(z) > len(found) && wire.Under(name, z) {
			found = z
		}
	}
	return found
}

// netSet is prefixes in order, none of which is in another: the one that an address is
// in, if any, is the last that does not begin behind it.
type netSet []netip.Prefix

// newNetSet is nil for a nil list. The prefixes are masked.
func newNetSet(list []netip.Prefix) netSet {
	if list == nil {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(list), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	set := make(netSet, 0, len(sorted))
	for _, p := range sorted {
		if n := len(set); n == 0 || !set[n-1].Contains(p.Addr()) {
			set = append(set, p)
		}
	}
	return set
}

// has reports whether addr, which has no zone, is in one of the prefixes.
func (s netSet) has(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(s, addr, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && s[i-1].Contains(addr)
}

// denied is judged, for a zone that may have no ACL.
func (z *Zone) denied(x *exchange) bool { return z.ACL != nil && z.judged(x) }

// judged is the step of the ACL: true if the zone's sources are not to be asked, and
// then the reply says so. It comes behind rewriting and search paths, so that no other
// name leads around it, and before the first source.
func (z *Zone) judged(x *exchange) bool {
	verdict, zone := z.ACL.judge(&x.q, x.client.Addr())
	x.marks, x.rule = x.marks&^verdicts|verdict, zone
	switch verdict {
	case allowed:
		return false
	case blocked:
		x.r.Fail(wire.Refused)
		x.r.SetEDE(wire.EDEBlocked)
	case filtered:
		x.r.Fail(wire.NoError)
		x.r.SetEDE(wire.EDEFiltered)
	default:
		x.r.Fail(wire.NoError) // which is not sent
	}
	x.source = fromACL
	return true
}
