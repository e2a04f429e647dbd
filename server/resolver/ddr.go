package resolver

import "github.com/nodens-dns/nodens/internal/wire"

// resolverZone is where clients ask a resolver for other ways to reach it (RFC 9462).
// The answer of an upstream designates the upstream: clients would ask it in place of
// this server, past the cluster's names and past every rule. So these names are served
// here, without records (RFC 9462, 6.1, 6.4), and are never forwarded by a pool that is
// for other names too.
const resolverZone = "\x08resolver\x04arpa\x00"

const (
	resolverTTL = 10800
	// resolverSOA is the RDATA of the zone's SOA record (RFC 6303, 3): the server is the
	// owner, the mailbox nobody.invalid.
	resolverSOA = resolverZone + "\x06nobody\x07invalid\x00" + "\x00\x00\x00\x01" +
		"\x00\x00\x0e\x10" + "\x00\x00\x04\xb0" + "\x00\x09\x3a\x80" + "\x00\x00\x2a\x30"
)

// undesignated is the step in front of the cache and the upstreams: true if r's name is in
// the resolver zone and would be forwarded, and then the reply says that there are no such
// records.
func (z *Zone) undesignated(r *Request) bool {
	return endsInResolverZone(r.Query.Name()) && z.servesResolverZone(r)
}

// endsInResolverZone reports whether name's last bytes are those of the resolver zone. It is
// all that other names pay for: a look at one byte, nearly always.
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
	r.reply.SetAuthoritative()
	section := wire.Authority
	if len(r.Query.Name()) == len(resolverZone) && r.Query.Type == wire.TypeSOA {
		section = wire.Answer
	}
	r.reply.Add(section, r.reply.Suffix(len(resolverZone)), wire.TypeSOA, resolverTTL, []byte(resolverSOA))
	return true
}

// InResolverZone reports whether name is one by which clients look for designated
// resolvers.
func InResolverZone(name wire.Name) bool { return name.Under(resolverZone) }
