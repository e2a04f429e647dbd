package resolver

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ACL decides which clients may ask what. It is immutable and safe for concurrent use.
type ACL struct {
	rules []rule
	zones map[wire.Name]*aclZone
	depth int // labels of the longest zone
}

// rule is one acl directive, without its zones.
type rule struct {
	policies []policy
}

// aclZone is a zone for which there are rules.
type aclZone struct {
	name  wire.Name
	rules []int // in order
}

// policy is the verdict on queries of some types from some nets; nil is all types, or all nets.
type policy struct {
	verdict verdicts
	types   []uint16
	nets    netSet
}

// NewACL makes the ACL of cfg.
func NewACL(cfg *config.ACL) *ACL {
	a := &ACL{zones: make(map[wire.Name]*aclZone)}
	for i, r := range cfg.Rules {
		made := rule{}
		for _, p := range joined(r.Policies) {
			made.policies = append(made.policies, policy{verdict: verdictOf[p.Action], types: p.Types, nets: newNetSet(p.Nets)})
		}
		a.rules = append(a.rules, made)
		for _, name := range r.Zones {
			z := a.zones[name]
			if z == nil {
				z = &aclZone{name: name}
				a.zones[name] = z
				a.depth = max(a.depth, name.Labels())
			}
			if !slices.Contains(z.rules, i) {
				z.rules = append(z.rules, i)
			}
		}
	}
	return a
}

// joined merges adjacent policies that differ only in their nets, so that a list with thousands
// of lines is as fast as one line with thousands of nets.
func joined(list []config.ACLPolicy) (out []config.ACLPolicy) {
	for _, p := range list {
		last := len(out) - 1
		if last < 0 || out[last].Action != p.Action || (out[last].Types == nil) != (p.Types == nil) || !slices.Equal(out[last].Types, p.Types) {
			p.Nets = slices.Clone(p.Nets)
			out = append(out, p)
			continue
		}
		if p.Nets == nil || out[last].Nets == nil {
			out[last].Nets = nil
			continue
		}
		out[last].Nets = append(out[last].Nets, p.Nets...)
	}
	return out
}

var verdictOf = map[config.ACLAction]verdicts{
	config.ACLAllow: allowed, config.ACLBlock: blocked, config.ACLDrop: dropped, config.ACLFilter: filtered,
}

// judge returns the verdict on a query for name and qtype from client, and the zone of the rule
// behind it. Queries that match no rule are allowed. A client without an address is blocked if
// there is a rule for the name. judge keeps what it finds out about the client in n, which may
// be nil, and allocates nothing.
func (a *ACL) judge(name []byte, qtype uint16, client netip.Addr, n *decisions) (verdict verdicts, zone wire.Name) {
	client = client.Unmap().WithZone("")
	verdict, first := allowed, noRule
	for name = lastLabels(name, a.depth); ; name = name[1+name[0]:] {
		if z := a.zones[wire.Name(name)]; z != nil {
			if i, v := a.consult(z, qtype, client, n); i < first {
				verdict, first, zone = v, i, z.name
			}
		}
		if len(name) <= 1 {
			return verdict, zone
		}
	}
}

// lastLabels returns the end of name with at most so many labels.
func lastLabels(name []byte, labels int) []byte {
	have := 0
	for rest := name; len(rest) > 1; rest = rest[1+rest[0]:] {
		have++
	}
	for range have - labels {
		name = name[1+name[0]:]
	}
	return name
}

// noRule is the index of no rule; it is larger than all others.
const noRule = math.MaxInt

// decide returns the index and the verdict of the first of z's rules that matches a query for
// qtype from client, or [noRule].
func (a *ACL) decide(z *aclZone, qtype uint16, client netip.Addr) (first int, verdict verdicts) {
	for _, i := range z.rules {
		if !client.IsValid() {
			return i, blocked
		}
		for j := range a.rules[i].policies {
			if p := &a.rules[i].policies[j]; p.matches(qtype, client) {
				return i, p.verdict
			}
		}
	}
	return noRule, allowed
}

// decisions caches the verdicts of zones on one client, so that a reply with many names does
// not match the client against the same rules again. The zero value is ready.
type decisions struct {
	list    [8]decision
	next    int
	decided int // how often a client was checked against the rules of a zone
}

type decision struct {
	zone    *aclZone
	qtype   uint16
	verdict verdicts
	first   int
}

// consult is decide with the cache n, which may be nil.
func (a *ACL) consult(z *aclZone, qtype uint16, client netip.Addr, n *decisions) (first int, verdict verdicts) {
	if n == nil {
		return a.decide(z, qtype, client)
	}
	for i := range n.list {
		if e := &n.list[i]; e.zone == z && e.qtype == qtype {
			return e.first, e.verdict
		}
	}
	n.decided++
	first, verdict = a.decide(z, qtype, client)
	n.list[n.next] = decision{zone: z, qtype: qtype, verdict: verdict, first: first}
	n.next = (n.next + 1) % len(n.list)
	return first, verdict
}

func (p *policy) matches(qtype uint16, client netip.Addr) bool {
	return (p.types == nil || slices.Contains(p.types, qtype)) && (p.nets == nil || p.nets.has(client))
}

// netSet is a sorted list of prefixes that do not overlap. The prefix of an address, if there
// is one, is the last that does not begin after it.
type netSet []netip.Prefix

// newNetSet returns nil for a nil list. The prefixes must be masked.
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

// has reports whether one of the prefixes contains addr, which has no zone.
func (s netSet) has(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(s, addr, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && s[i-1].Contains(addr)
}

// denied is the step of the ACL, before the zone's sources. It returns true if the client may
// not ask; the reply then says so. It comes after rewriting and the search path, so that
// neither leads around the ACL.
func (z *Zone) denied(r *Request) bool { return z.ACL != nil && z.judged(r) }

func (z *Zone) judged(r *Request) bool {
	verdict, zone := z.ACL.judge(r.Query.Name(), r.Query.Type, r.Client.Addr(), nil)
	// There is no verdict yet, and with one no copy is made of the reply, as with listed.
	r.verdicts, r.rule = verdict, zone
	if r.trace != nil {
		r.traceVerdict("")
	}
	return verdict&anyDenial != 0 && r.deny()
}

// deny replies as the verdict says. It returns true.
func (r *Request) deny() bool {
	switch r.verdicts & anyDenial {
	case blocked:
		r.reply.Fail(wire.Refused)
		r.reply.SetEDE(wire.EDEBlocked)
	case filtered:
		r.reply.Fail(wire.NoError)
		r.reply.SetEDE(wire.EDEFiltered)
	case hidden:
		r.reply.Fail(wire.NXDomain)
	case forbidden:
		r.denyByPolicy()
		return true
	case byRule:
		r.applyRule()
		return true
	default:
		r.reply.Fail(wire.NoError) // which is not sent
	}
	r.source = fromACL
	return true
}

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
