package resolver

import (
	"bytes"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Local answers localhost and the zones of the loopback addresses, which must not be
// forwarded (RFC 6761, 6.3; RFC 6303). It is immutable and safe for concurrent use.
type Local struct {
	prefix bool
}

// NewLocal makes the Local of cfg.
func NewLocal(cfg *config.Local) *Local { return &Local{prefix: cfg.Prefix} }

// localZones are the zones that are answered for, localhost first.
var localZones = [...]wire.Name{
	"\x09localhost\x00",
	"\x010\x07in-addr\x04arpa\x00",
	"\x03127\x07in-addr\x04arpa\x00",
	"\x03255\x07in-addr\x04arpa\x00",
}

const (
	// localPTR is the only name in the reverse zones besides their apexes.
	localPTR = "\x011\x010\x010\x03127\x07in-addr\x04arpa\x00"
	// localTTL is a week, as in CoreDNS.
	localTTL = 604800
	// localSOA is the RDATA of each zone: server, mailbox, serial 1, no times, and the
	// TTL once more.
	localSOA = "\x09localhost\x00" + "\x04root\x09localhost\x00" + "\x00\x00\x00\x01" +
		"\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x09\x3a\x80"
)

var (
	localA    = []byte{127, 0, 0, 1}
	localAAAA = []byte{15: 1}
)

// answer answers r if its name is a local one; else it returns false and leaves the reply.
func (l *Local) answer(r *Request) bool {
	name := r.Query.Name()
	if l.special(name) {
		r.verdicts |= localhost
		r.source = fromLocal
		if !addLoopback(r) {
			r.addLocalSOA(wire.Authority, len(name))
		}
		return true
	}
	zone := localZone(name)
	if zone == "" {
		return false
	}
	r.source = fromLocal
	switch {
	case len(name) == len(zone):
		r.answerApex(zone)
	case string(name) != localPTR:
		r.reply.SetRcode(wire.NXDomain)
		r.addLocalSOA(wire.Authority, len(zone))
	case r.Query.Type == wire.TypePTR:
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, localTTL, []byte(localZones[0]))
	default:
		r.addLocalSOA(wire.Authority, len(zone))
	}
	return true
}

// special reports whether name is below localhost or, as in CoreDNS, begins with localhost.
func (l *Local) special(name []byte) bool {
	host := string(localZones[0])
	if len(name) <= len(host) {
		return false
	}
	return l.prefix && bytes.HasPrefix(name, []byte(host[:len(host)-1])) || wire.Under(name, localZones[0])
}

// localZone returns the local zone of name, "" for none. The comparison of the last bytes
// rules out nearly all names.
func localZone(name []byte) wire.Name {
	for _, z := range localZones {
		if len(name) >= len(z) && string(name[len(name)-len(z):]) == string(z) && wire.Under(name, z) {
			return z
		}
	}
	return ""
}

// answerApex answers for zone's own name.
func (r *Request) answerApex(zone wire.Name) {
	switch {
	case zone == localZones[0] && addLoopback(r):
	case r.Query.Type == wire.TypeSOA:
		r.addLocalSOA(wire.Answer, len(zone))
	case r.Query.Type == wire.TypeNS:
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeNS, localTTL, []byte(localZones[0]))
	default:
		r.addLocalSOA(wire.Authority, len(zone))
	}
}

// addLoopback adds the loopback address for a query of type A or AAAA; it returns false for
// other types.
func addLoopback(r *Request) bool {
	switch r.Query.Type {
	case wire.TypeA:
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeA, localTTL, localA)
	case wire.TypeAAAA:
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeAAAA, localTTL, localAAAA)
	default:
		return false
	}
	return true
}

// addLocalSOA adds a SOA record whose owner is the last n bytes of the qname.
func (r *Request) addLocalSOA(s wire.Section, n int) {
	r.reply.Add(s, r.reply.Suffix(n), wire.TypeSOA, localTTL, []byte(localSOA))
}

// resolverZone is the zone in which clients look for encrypted endpoints of their resolver
// (RFC 9462). An upstream's answer designates the upstream: clients would ask it directly, and
// miss the cluster's names and every policy. So the zone is served empty here (RFC 9462, 6.1,
// 6.4). Only a pool for just these names forwards them.
const resolverZone = "\x08resolver\x04arpa\x00"

// servedZones are the zones that are served empty where they would be forwarded together with other names: resolverZone, and
// the reverse zones of the addresses that mean another host on each node, link-local and loopback (RFC 6303, 4.2 to 4.4).
// Names of the agent's own addresses are among them. Reverse zones of private addresses are not: upstreams may know them.
var servedZones = [...]wire.Name{
	resolverZone, "\x03254\x03169\x07in-addr\x04arpa\x00", "\x03127\x07in-addr\x04arpa\x00", loopback6,
	"\x018\x01e\x01f\x03ip6\x04arpa\x00", "\x019\x01e\x01f\x03ip6\x04arpa\x00",
	"\x01a\x01e\x01f\x03ip6\x04arpa\x00", "\x01b\x01e\x01f\x03ip6\x04arpa\x00",
}

// loopback6 is the reverse name of ::1.
const loopback6 = "\x011" + zeros6 + zeros6 + zeros6 + "\x010\x03ip6\x04arpa\x00"

// zeros6 are ten labels of a reverse name.
const zeros6 = "\x010\x010\x010\x010\x010\x010\x010\x010\x010\x010"

const (
	servedTTL = 10800
	// servedSOA is the RDATA of a zone's SOA record behind the server, which is the owner (RFC 6303, 3).
	servedSOA = "\x06nobody\x07invalid\x00" + "\x00\x00\x00\x01" +
		"\x00\x00\x0e\x10" + "\x00\x00\x04\xb0" + "\x00\x09\x3a\x80" + "\x00\x00\x2a\x30"
	arpa = "\x04arpa\x00"
)

// servedHere is the step of the served zones: if r is for a name in one and would be forwarded to a pool for other
// names too, it answers and returns true.
func (z *Zone) servedHere(r *Request) bool {
	return endsInArpa(r.Query.Name()) && z.servesZone(r)
}

// endsInArpa reports whether name ends in the bytes of arpa. For nearly all names it compares one byte.
func endsInArpa(name []byte) bool {
	n := len(name) - len(arpa)
	return n >= 0 && name[n] == arpa[0] && string(name[n:]) == arpa
}

// servedZone returns the served zone that name is in, "" for none.
func servedZone(name []byte) wire.Name {
	for _, zone := range servedZones {
		if wire.Under(name, zone) {
			return zone
		}
	}
	return ""
}

// servesZone is servedHere for names that end in the bytes of arpa.
func (z *Zone) servesZone(r *Request) bool {
	zone := servedZone(r.Query.Name())
	if zone == "" {
		return false
	}
	p := z.upstreams(&r.Query)
	if p == nil || z.Designates != nil && z.Designates(p) {
		return false
	}
	r.source = fromLocal
	if zone == resolverZone {
		r.note(stepOf[fromLocal], Answered, "resolver.arpa is served empty (RFC 9462)")
	} else {
		r.note(stepOf[fromLocal], Answered, "link-local and loopback addresses are not asked of upstreams (RFC 6303)")
	}
	r.reply.SetAuthoritative()
	r.answerServed(zone)
	return true
}

// answerServed answers for a name in a served zone.
func (r *Request) answerServed(zone wire.Name) {
	name, section := string(r.Query.Name()), wire.Authority
	loopback := name == localPTR || name == loopback6
	switch {
	case loopback && r.Query.Type == wire.TypePTR:
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypePTR, servedTTL, []byte(localZones[0]))
		return
	case name == string(zone) && r.Query.Type == wire.TypeSOA:
		section = wire.Answer
	case zone != resolverZone && name != string(zone) && !loopback:
		r.reply.SetRcode(wire.NXDomain)
	}
	r.reply.Add(section, r.reply.Suffix(len(zone)), wire.TypeSOA, servedTTL, []byte(string(zone)+servedSOA))
}

// InServedZone reports whether name is in a zone that is served here unless a server block or a forward is for just it.
func InServedZone(name wire.Name) bool { return servedZone([]byte(name)) != "" }
