package zonefile

import (
	"math"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// addSets adds the records of type t of the node from under the name owner, and their signatures for
// clients that want them.
func (a *answer) addSets(section wire.Section, owner []byte, from node, t uint16) {
	var s set
	for list := from.sets(); list.next(&s); {
		if s.rtype == t {
			a.addSet(section, owner, s, math.MaxUint32)
		}
	}
	if a.q.DO {
		a.addSignatures(section, owner, from, t, math.MaxUint32)
	}
}

// addSet adds the records of s with TTLs up to maxTTL, until the reply is full.
func (a *answer) addSet(section wire.Section, owner []byte, s set, maxTTL uint32) {
	rtype := s.rtype
	for !a.r.Overflows() {
		ttl, data, ok := s.next()
		if !ok {
			return
		}
		a.r.AddRR(&a.known, section, wire.RR{Owner: owner, Type: rtype, TTL: min(ttl, maxTTL), Data: data})
	}
}

// addFirst is addSets for a type of which a name has one record, with the answer section.
func (a *answer) addFirst(owner []byte, from node, t uint16) {
	s, _ := from.find(t)
	ttl, data := s.first()
	a.r.AddRR(&a.known, wire.Answer, wire.RR{Owner: owner, Type: t, TTL: ttl, Data: data})
	if a.q.DO {
		a.addSignatures(wire.Answer, owner, from, t, math.MaxUint32)
	}
}

// addSignatures adds the signatures of the records of type t of the node from, with TTLs up to maxTTL.
func (a *answer) addSignatures(section wire.Section, owner []byte, from node, t uint16, maxTTL uint32) {
	var s set
	for list := from.sets(); list.next(&s); {
		if s.rtype == typeRRSIG && s.covered == t {
			a.addSet(section, owner, s, maxTTL)
		}
	}
}

// addNS adds the zone's name servers to a positive answer, and what proves that its wildcards apply.
func (a *answer) addNS() {
	a.addSets(wire.Authority, a.z.apex.name(), a.z.apex, wire.TypeNS)
	a.addWildcardProofs()
}

// addSOA adds the SOA record of a denial, which holds for the least of its TTL and its MINIMUM (RFC
// 2308, 3), and its signatures, which have its TTL (RFC 4034, 3).
func (a *answer) addSOA() {
	_, data := a.z.soa.first()
	a.r.AddRR(&a.known, wire.Authority, wire.RR{Owner: a.z.apex.name(), Type: wire.TypeSOA, TTL: a.z.negative, Data: data})
	if a.q.DO {
		a.addSignatures(wire.Authority, a.z.apex.name(), a.z.apex, wire.TypeSOA, a.z.negative)
	}
}

// addProof adds the NSEC records of n, which may be none, unless they are in the reply already.
func (a *answer) addProof(n node) {
	if !n.ok() || slices.Contains(a.proofs[:a.proven], n.at) {
		return
	}
	a.proofs[a.proven] = n.at
	a.proven++
	a.addSets(wire.Authority, n.name(), n, typeNSEC)
}

// addWildcardProofs adds, for each name that a wildcard was expanded to, the proof that the name itself
// does not exist (RFC 4035, 3.1.3.3).
func (a *answer) addWildcardProofs() {
	if !a.q.DO {
		return
	}
	for _, name := range a.expanded[:a.wilds] {
		a.addProof(a.z.before(name))
	}
}

// maxTargets bounds the names whose addresses are added to a reply: enough for what fits into one.
const maxTargets = 32

// addGlue adds the addresses of the name servers in ns that are in zone.
func (a *answer) addGlue(ns set, zone wire.Name) {
	var done targets
	for !a.r.Overflows() {
		_, name, ok := ns.next()
		if !ok {
			return
		}
		a.addAddresses(&done, name, zone)
	}
}

// addTargets adds the addresses of the names that the records of s lead to.
func (a *answer) addTargets(s set) {
	at := targetAt(s.rtype)
	if at < 0 {
		return
	}
	var done targets
	for !a.r.Overflows() {
		_, data, ok := s.next()
		if !ok {
			return
		}
		if len(data) > at {
			a.addAddresses(&done, data[at:], a.z.origin)
		}
	}
}

// targetAt returns the offset of the target in RDATA of type t, -1 if its addresses are not added.
func targetAt(t uint16) int {
	switch t {
	case wire.TypeMX, typeSVCB, typeHTTPS:
		return 2
	case wire.TypeSRV:
		return 6
	}
	return -1
}

// targets are the nodes whose addresses were added.
type targets struct {
	at [maxTargets]int
	n  int
}

// add reports whether n is new, and there is a place for it.
func (t *targets) add(n node) bool {
	for _, at := range t.at[:t.n] {
		if at == n.at {
			return false
		}
	}
	if t.n == maxTargets {
		return false
	}
	t.at[t.n] = n.at
	t.n++
	return true
}

// addAddresses adds the addresses of the name at the beginning of rdata, if it is in zone and not in
// done.
func (a *answer) addAddresses(done *targets, rdata []byte, zone wire.Name) {
	var buf [wire.MaxName]byte
	name := buf[:copy(buf[:], rdata[:nameLen(rdata)])]
	lowerName(name)
	if !wire.Under(name, zone) {
		return
	}
	if n := a.z.node(name); n.ok() && done.add(n) {
		a.addSets(wire.Additional, name, n, wire.TypeA)
		a.addSets(wire.Additional, name, n, wire.TypeAAAA)
	}
}
