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
