package zonefile

import (
	"slices"
	"sync"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxAliases bounds the CNAME records of one answer: as many as CoreDNS follows.
const maxAliases = 10

// yxDomain is the rcode for a DNAME record that makes too long a name (RFC 6672, 2.2).
const yxDomain wire.Rcode = 6

// answer is one answer under construction.
type answer struct {
	z *Zone
	q *wire.Query
	r *wire.Reply
	// through says which names that do not exist are left to the next step; nil: none are.
	through *config.Fallthrough
	known   wire.Compression
	// name is the name that is looked up: the qname, or what aliases have led to.
	name []byte
	// aliases are the nodes with the CNAME records that were followed.
	aliases [maxAliases]int
	n       int
	// expanded are the names that wildcards were expanded to.
	expanded [maxAliases + 1][]byte
	wilds    int
	// proofs are the nodes whose NSEC records are in the reply.
	proofs [maxAliases + 3]int
	proven int
	buf    [2][wire.MaxName]byte // for names that DNAME records make, in turn
	turn   uint8
}

// step says how the answer goes on after an alias.
type step uint8

const (
	finished step = iota
	follow        // the alias leads to answer.name
	leave         // answer.name is not in the zone
	give          // the next step of the path has to answer
)

// answers are reused: an answer refers to its own buffers, so it is in the heap.
var answers = sync.Pool{New: func() any { return new(answer) }}

// run answers q from z. through says which names that do not exist are left to the next step.
func (a *answer) run(z *Zone, q *wire.Query, r *wire.Reply, through *config.Fallthrough) (authority.Outcome, authority.Lead) {
	a.z, a.q, a.r, a.through, a.name = z, q, r, through, q.Name()
	a.known, a.n, a.wilds, a.proven = wire.Compression{}, 0, 0, 0
	a.r.Reset()
	for {
		switch a.lookup() {
		case follow:
			continue
		case leave:
			if !a.r.Overflows() {
				return authority.Leads, authority.Lead{Target: wire.Name(a.name), Zone: a.z}
			}
		case give:
			a.r.Reset()
			return authority.NotMine, authority.Lead{}
		case finished:
		}
		return authority.Answered, authority.Lead{}
	}
}

// lookup adds what the zone has for a.name.
func (a *answer) lookup() step {
	if a.n > 0 && !wire.Under(a.name, a.z.origin) {
		return leave
	}
	m, found, encloser := a.z.search(a.name, a.q.Type)
	switch m {
	case delegated:
		return a.refer(found)
	case redirects:
		return a.redirect(found)
	case wildcard:
		a.expanded[a.wilds] = a.name
		a.wilds++
	case exact, absent:
		if m == absent || found.sets().left == 0 {
			return a.pass(m, encloser)
		}
	}
	return a.answerFrom(found)
}

// pass leaves a name that does not exist, or has no records, to the next step, or denies it.
func (a *answer) pass(m match, encloser int) step {
	switch {
	case !fallsThrough(a.through, a.name):
		return a.deny(m, encloser)
	case a.n > 0:
		return leave
	default:
		return give
	}
}

// answerFrom adds the records of the node found for a.name.
func (a *answer) answerFrom(found node) step {
	if found.flags()&hasCNAME != 0 && !answersAlias(a.q.Type) {
		return a.followAlias(found)
	}
	qtype := a.q.Type
	if qtype == wire.TypeANY {
		qtype = firstType(found)
	}
	s, ok := found.find(qtype)
	if !ok {
		return a.noData(found)
	}
	a.addSets(wire.Answer, a.name, found, qtype)
	a.finish()
	if qtype == wire.TypeNS {
		a.addGlue(s, a.z.origin)
		return finished
	}
	a.addNS()
	a.addTargets(s)
	return finished
}

// answersAlias reports whether a query of type t for an alias is answered with what the alias has itself
// (RFC 1034, 3.6.2; RFC 4035, 2.4).
func answersAlias(t uint16) bool {
	return t == wire.TypeCNAME || t == wire.TypeANY || t == typeRRSIG || t == typeNSEC
}

// firstType returns the type that answers ANY: one RRset of the name (RFC 8482, 4.1).
func firstType(n node) uint16 {
	var s set
	for list := n.sets(); list.next(&s); {
		return s.rtype
	}
	return wire.TypeANY
}

// finish sets the flags of an answer with authority.
func (a *answer) finish() { a.r.SetAuthoritative() }

// fallsThrough reports whether f leaves name to the next step.
func fallsThrough(f *config.Fallthrough, name []byte) bool {
	if f == nil {
		return false
	}
	return len(f.Zones) == 0 || slices.ContainsFunc(f.Zones, func(z wire.Name) bool { return wire.Under(name, z) })
}

// followAlias adds the CNAME record of found, and follows it.
func (a *answer) followAlias(found node) step {
	s, _ := found.find(wire.TypeCNAME)
	_, target := s.first()
	if string(target) == string(a.name) { // an alias of itself can only loop
		a.r.Fail(wire.ServFail)
		return finished
	}
	if a.n == maxAliases || slices.Contains(a.aliases[:a.n], found.at) {
		a.finish()
		a.addNS()
		return finished
	}
	a.aliases[a.n] = found.at
	a.n++
	a.addFirst(a.name, found, wire.TypeCNAME)
	a.name = target
	return follow
}

// redirect adds the DNAME record of found, which is above a.name, and the CNAME record that it makes
// (RFC 6672, 3.1).
func (a *answer) redirect(found node) step {
	s, _ := found.find(wire.TypeDNAME)
	ttl, target := s.first()
	owner := found.name()
	a.addFirst(owner, found, wire.TypeDNAME)
	prefix := a.name[:len(a.name)-len(owner)]
	if len(prefix)+len(target) > wire.MaxName {
		a.finish()
		a.r.SetRcode(yxDomain)
		return finished
	}
	made := a.buf[a.turn][:0]
	a.turn = 1 - a.turn
	made = append(append(made, prefix...), target...)
	lowerName(made)
	if string(made) == string(a.name) {
		a.r.Fail(wire.ServFail)
		return finished
	}
	if a.n == maxAliases {
		a.finish()
		a.addNS()
		return finished
	}
	a.aliases[a.n] = -1
	a.n++
	a.r.AddRR(&a.known, wire.Answer, wire.RR{Owner: a.name, Type: wire.TypeCNAME, TTL: ttl, Data: made})
	a.name = made
	if answersAlias(a.q.Type) && a.n == 1 {
		a.finish()
		a.addNS()
		return finished
	}
	return follow
}

// lowerName puts name in lower case.
func lowerName(name []byte) {
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
}

// refer adds a referral to the servers of the zone that is delegated at cut, with their addresses below
// it (RFC 9471, 2).
func (a *answer) refer(cut node) step {
	if a.n > 0 {
		a.finish() // for the alias
	}
	owner := cut.name()
	a.addSets(wire.Authority, owner, cut, wire.TypeNS)
	if a.q.DO {
		if _, signed := cut.find(wire.TypeDS); signed {
			a.addSets(wire.Authority, owner, cut, wire.TypeDS)
		} else {
			a.addSets(wire.Authority, owner, cut, typeNSEC)
		}
	}
	a.addWildcardProofs()
	ns, _ := cut.find(wire.TypeNS)
	a.addGlue(ns, wire.Name(owner))
	return finished
}

// noData adds the denial of the type for a name that exists.
func (a *answer) noData(found node) step {
	a.finish()
	a.addSOA()
	if a.q.DO {
		a.addProof(found)
		a.addWildcardProofs()
	}
	return finished
}

// deny adds the denial of a name that does not exist, or has no records (RFC 2308; RFC 4035, 3.1.3).
func (a *answer) deny(m match, encloser int) step {
	a.finish()
	if m == absent {
		a.r.SetRcode(wire.NXDomain)
	}
	a.addSOA()
	if !a.q.DO {
		return finished
	}
	a.addWildcardProofs()
	covering := a.z.before(a.name)
	a.addProof(covering)
	if m == exact || !covering.ok() {
		return finished
	}
	var buf [2 + wire.MaxName]byte
	buf[0], buf[1] = 1, '*'
	n := 2 + copy(buf[2:], a.name[encloser:])
	a.addProof(a.z.before(buf[:n]))
	return finished
}
