package zonefile

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"sort"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Zone is the data of one zone. It is immutable and safe for concurrent use.
//
// data holds the nodes in canonical order (RFC 4034, 6.1). A node is a name: its flags, the
// name, the number of its sets and the sets. A name that only has names below it (an empty
// non-terminal, RFC 4592, 2.2.2) is a node without sets. A set is an RRset: its type, the type
// covered by signatures (RRSIG only, else 0), the number and the size of its records, and the
// records; a record is a TTL, a length and RDATA. A table of hashes finds the node of a name.
type Zone struct {
	origin wire.Name
	data   []byte
	// slots is a hash table with open addressing: an offset in data plus one, 0 for a free slot.
	slots []uint32
	seed  maphash.Seed
	// secure are the nodes with NSEC records, in canonical order.
	secure []uint32
	names  int
	// records is the number of records, and outside that of records that are not in the zone.
	records, outside int
	serial           uint32
	// soa and ns are the sets of the origin; ns may be missing.
	soa, ns set
	apex    node
	// negative is the TTL of denials: the least of the SOA's TTL and its MINIMUM (RFC 2308, 5).
	negative uint32
}

// Flags of a node.
const (
	hasNS uint8 = 1 << iota
	hasDNAME
	hasCNAME
)

// Origin returns the zone's name.
func (z *Zone) Origin() wire.Name { return z.origin }

// Serial returns the serial number of the zone's SOA record.
func (z *Zone) Serial() uint32 { return z.serial }

// Records returns the number of records.
func (z *Zone) Records() int { return z.records }

// Size returns the bytes that the zone takes in memory.
func (z *Zone) Size() int { return len(z.data) + 4*(len(z.slots)+len(z.secure)) }

// index makes the hash table of nodes, and the list of those with NSEC records.
func (z *Zone) index(nodes []uint32) {
	size := 4
	for size < 2*len(nodes) {
		size *= 2
	}
	z.slots, z.names = make([]uint32, size), len(nodes)
	for _, at := range nodes {
		n := node{z, int(at)}
		i := int(maphash.Bytes(z.seed, n.name())) & (size - 1)
		for z.slots[i] != 0 {
			i = (i + 1) & (size - 1)
		}
		z.slots[i] = at + 1
		if _, ok := n.find(typeNSEC); ok {
			z.secure = append(z.secure, at)
		}
	}
}

// setApex sets what is needed of the origin for every query.
func (z *Zone) setApex() {
	z.apex = z.node([]byte(z.origin))
	z.soa, _ = z.apex.find(wire.TypeSOA)
	z.ns, _ = z.apex.find(wire.TypeNS)
	ttl, rdata := z.soa.first()
	z.serial = serialOf(rdata)
	z.negative = min(ttl, binary.BigEndian.Uint32(rdata[len(rdata)-4:]))
}

// node is a node in a zone's data. The zero value is none.
type node struct {
	z  *Zone
	at int // offset of its flags
}

func (n node) ok() bool     { return n.z != nil }
func (n node) flags() uint8 { return n.z.data[n.at] }

// name returns the node's name. The caller must not change it.
func (n node) name() []byte {
	return n.z.data[n.at+1 : n.at+1+nameLen(n.z.data[n.at+1:])]
}

// nameLen returns the length of the name at the beginning of b.
func nameLen(b []byte) int {
	n := 0
	for b[n] != 0 {
		n += 1 + int(b[n])
	}
	return n + 1
}

// sets returns an iterator over the node's sets.
func (n node) sets() sets {
	at := n.at + 1 + nameLen(n.z.data[n.at+1:])
	return sets{data: n.z.data[at+2:], left: int(binary.BigEndian.Uint16(n.z.data[at:]))}
}

// find returns the set of type t; for signatures any of them.
func (n node) find(t uint16) (s set, ok bool) {
	for list := n.sets(); list.next(&s); {
		if s.rtype == t {
			return s, true
		}
	}
	return set{}, false
}

// sets iterates over the sets of a node.
type sets struct {
	data []byte
	left int
}

// setHeader is the size of what precedes the records of a set, and recordHeader that of what
// precedes RDATA.
const setHeader, recordHeader = 10, 6

// next makes s the next set; false at the end.
func (l *sets) next(s *set) bool {
	if l.left == 0 {
		return false
	}
	l.left--
	size := int(binary.BigEndian.Uint32(l.data[6:]))
	*s = set{
		rtype: binary.BigEndian.Uint16(l.data), covered: binary.BigEndian.Uint16(l.data[2:]),
		count: int(binary.BigEndian.Uint16(l.data[4:])), data: l.data[setHeader : setHeader+size],
	}
	l.data = l.data[setHeader+size:]
	return true
}

// set is an RRset. It iterates over its records.
type set struct {
	rtype, covered uint16
	count          int
	data           []byte // the records that are left
}

// next returns the next record; false at the end.
func (s *set) next() (ttl uint32, rdata []byte, ok bool) {
	if len(s.data) == 0 {
		return 0, nil, false
	}
	n := recordHeader + int(binary.BigEndian.Uint16(s.data[4:]))
	ttl, rdata = binary.BigEndian.Uint32(s.data), s.data[recordHeader:n]
	s.data = s.data[n:]
	return ttl, rdata, true
}

// first returns the RDATA and the TTL of the first record.
func (s set) first() (uint32, []byte) {
	ttl, rdata, _ := s.next()
	return ttl, rdata
}

// node returns the node of name, which is in lower case and wire form.
func (z *Zone) node(name []byte) node {
	mask := len(z.slots) - 1
	for i := int(maphash.Bytes(z.seed, name)) & mask; ; i = (i + 1) & mask {
		at := int(z.slots[i]) - 1
		if at < 0 {
			return node{}
		}
		// A name that begins with another one is longer than it: the zero byte ends both.
		if rest := z.data[at+1:]; len(rest) >= len(name) && string(rest[:len(name)]) == string(name) {
			return node{z, at}
		}
	}
}

// before returns the node with NSEC records that is name or the last one before it; none if the zone has no NSEC records.
func (z *Zone) before(name []byte) node {
	i := sort.Search(len(z.secure), func(i int) bool {
		return wire.Canonical(node{z, int(z.secure[i])}.name(), name) > 0
	})
	if len(z.secure) == 0 {
		return node{}
	}
	return node{z, int(z.secure[max(i, 1)-1])}
}

// match says what a zone has for a name.
type match uint8

const (
	absent    match = iota // no such name
	exact                  // the name is a node
	wildcard               // the node is a wildcard for the name
	delegated              // the node is a zone cut at or above the name
	redirects              // the node is above the name and has a DNAME record
)

// search finds name, which is in z, for a query of type qtype (RFC 1034, 4.3.2; RFC 4592; RFC
// 6672, 3.2). With absent, encloser is the closest encloser's offset in name.
func (z *Zone) search(name []byte, qtype uint16) (m match, found node, encloser int) {
	var starts [wire.MaxName/2 + 1]uint8
	depth := 0
	for off := 0; len(name)-off > len(z.origin); off += 1 + int(name[off]) {
		starts[depth] = uint8(off)
		depth++
	}
	found, encloser = z.apex, len(name)-len(z.origin)
	for depth > 0 {
		if found.flags()&hasDNAME != 0 {
			return redirects, found, encloser
		}
		depth--
		off := int(starts[depth])
		below := z.node(name[off:])
		if !below.ok() {
			return z.searchWildcard(name, encloser)
		}
		found, encloser = below, off
		if below.flags()&hasNS != 0 && (off > 0 || qtype != wire.TypeDS) && (below.flags()&hasDNAME == 0 || off == 0) {
			return delegated, below, off
		}
	}
	return exact, found, 0
}

// searchWildcard finds the wildcard below the closest encloser of name.
func (z *Zone) searchWildcard(name []byte, encloser int) (match, node, int) {
	var buf [2 + wire.MaxName]byte
	buf[0], buf[1] = 1, '*'
	n := 2 + copy(buf[2:], name[encloser:])
	if found := z.node(buf[:n]); found.ok() {
		return wildcard, found, encloser
	}
	return absent, node{}, encloser
}

// timers returns the times in the zone's SOA record (RFC 1035, 3.3.13).
func (z *Zone) timers() (refresh, retry, expire time.Duration) {
	_, data := z.soa.first()
	return seconds(data, 16), seconds(data, 12), seconds(data, 8)
}

// SOA returns the zone's SOA record. The caller must not change its bytes.
func (z *Zone) SOA() wire.RR {
	ttl, data := z.soa.first()
	return wire.RR{Owner: z.apex.name(), Type: wire.TypeSOA, TTL: ttl, Data: data}
}

// All iterates over the zone's records, the SOA record among them: names in canonical order (RFC 4034,
// 6.1), the records of a name by type. Records point into the zone: nothing is copied, and the caller must not change
// their bytes.
func (z *Zone) All() iter.Seq[wire.RR] {
	return func(yield func(wire.RR) bool) {
		for n := (node{z, 0}); n.at < len(z.data); n = n.following() {
			var s set
			for list := n.sets(); list.next(&s); {
				if !s.yield(n.name(), yield) {
					return
				}
			}
		}
	}
}

// yield passes the records of s to yield, and reports whether it wants more.
func (s set) yield(owner []byte, yield func(wire.RR) bool) bool {
	for {
		ttl, data, ok := s.next()
		if !ok {
			return true
		}
		if !yield(wire.RR{Owner: owner, Type: s.rtype, TTL: ttl, Data: data}) {
			return false
		}
	}
}

// following returns the node after n in the zone's data; its offset is the data's size after the last one.
func (n node) following() node {
	list, s := n.sets(), set{}
	for list.next(&s) {
	}
	return node{n.z, len(n.z.data) - len(list.data)}
}

// Complete completes r, whose answers are the aliases and those of their target ([authority.Lead]), for the rcode that the
// target has and its number of answers: as CoreDNS does, the denial of a target is NXDOMAIN or
// NODATA of the alias' zone, and its failure is SERVFAIL; a refusal leaves the alias as the answer
// (RFC 6604, 3).
func (z *Zone) Complete(q *wire.Query, r *wire.Reply, rcode wire.Rcode, answers int) {
	a := answer{z: z, q: q, r: r}
	if q.DO { // the wildcards on the way to the target are not in r
		var again answer
		var discarded wire.Reply
		discarded.Start(nil, q)
		again.run(z, q, &discarded, nil)
		a.expanded, a.wilds = again.expanded, again.wilds
	}
	switch {
	case rcode == wire.NXDomain:
		r.SetRcode(wire.NXDomain)
		a.addSOA()
		a.addWildcardProofs()
	case rcode == wire.NoError && answers == 0:
		a.addSOA()
		a.addWildcardProofs()
	default:
		if rcode == wire.ServFail {
			r.SetRcode(wire.ServFail)
		}
		a.addNS()
	}
	r.SetAuthoritative()
}
