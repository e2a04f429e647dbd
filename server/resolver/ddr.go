package resolver

import "github.com/nodens-dns/nodens/internal/wire"

// resolverZone is the zone in which clients look for encrypted endpoints of their resolver
// (RFC 9462). An upstream's answer designates the upstream: clients would ask it directly, and
// miss the cluster's names and every policy. So the zone is served empty here (RFC 9462, 6.1,
// 6.4). Only a pool for just these names forwards them.
const resolverZone = "\x08resolver\x04arpa\x00"

const (
	resolverTTL = 10800
	// resolverSOA is the RDATA of the zone's SOA record (RFC 6303, 3): the server is the
	// owner, the mailbox nobody.invalid.
	resolverSOA = resolverZone + "\x06nobody\x07invalid\x00" + "\x00\x00\x00\x01" +
		"\x00\x00\x0e\x10" + "\x00\x00\x04\xb0" + "\x00\x09\x3a\x80" + "\x00\x00\x2a\x30"
)

// undesignated is the step of the resolver zone: if r would be forwarded to a pool for other
// names too, it answers NODATA and returns true.
func (z *Zone) undesignated(r *Request) bool {
	return endsInResolverZone(r.Query.Name()) && z.servesResolverZone(r)
}

// endsInResolverZone reports whether name ends in the bytes of the resolver zone. For nearly
// all names it compares one byte.
func endsInResolverZone(name []byte) bool {
	n := len(name) - len(resolverZone)
	return n >= 0 && name[n] == resolverZone[0] && string(name[n:]) == resolverZone
}

// servesResolverZone is undesignated for names that end in the zone's bytes.
func (z *Zone) servesResolverZone(r *Request) bool {
	if !wire.Under(r.Query.Name(), resolverZone) {
		return false
	}
	p := z.upstreams(&r.Query)
	if p == nil || z.Designates != nil && z.Designates(p) {
		return false
	}
	r.source = fromLocal
	r.note(stepOf[fromLocal], Answered, "resolver.arpa is served empty (RFC 9462)")
	r.reply.SetAuthoritative()
	section := wire.Authority
	if len(r.Query.Name()) == len(resolverZone) && r.Query.Type == wire.TypeSOA {
		section = wire.Answer
	}
	r.reply.Add(section, r.reply.Suffix(len(resolverZone)), wire.TypeSOA, resolverTTL, []byte(resolverSOA))
	return true
}

// InResolverZone reports whether name is in the zone for designated resolvers (RFC 9462).
func InResolverZone(name wire.Name) bool { return name.Under(resolverZone) }
