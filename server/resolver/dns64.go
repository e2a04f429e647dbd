package resolver

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// DNS64 synthesizes IPv6 addresses from IPv4 addresses (RFC 6147). It is immutable and safe for
// concurrent use.
type DNS64 struct {
	prefix    wire.Prefix64
	all, ipv4 bool
}

// NewDNS64 makes the DNS64 of cfg, whose prefix is valid.
func NewDNS64(cfg *config.DNS64) *DNS64 {
	prefix, _ := wire.NewPrefix64(cfg.Prefix)
	return &DNS64{prefix: prefix, all: cfg.TranslateAll, ipv4: cfg.AllowIPv4}
}

// applies reports whether r may be answered with synthesized addresses. A client that
// validates for itself would reject them (RFC 6147, 5.5).
func (d *DNS64) applies(r *Request) bool {
	if r.Query.Type != wire.TypeAAAA || r.Query.CD() && r.Query.DO {
		return false
	}
	return d.ipv4 || r.Client.Addr().Unmap().Is6()
}

// needsSynthesis reports whether r, whose reply is complete, needs synthesized addresses: the
// name may exist, and the reply has no address (RFC 6147, 5.1).
func (d *DNS64) needsSynthesis(r *Request) bool {
	if r.reply.Rcode() == wire.NXDomain || r.verdicts&(dropped|forbidden|byRule) != 0 {
		return false
	}
	_, has := r.reply.FirstTTL(wire.Answer, wire.TypeAAAA)
	return d.all || !has
}

// dns64 is the last step, after the sources, whose outcome is o. If the name has no IPv6
// address, they are synthesized from its IPv4 addresses.
func (rt *Routes) dns64(r *Request, o Outcome) Outcome {
	d := r.zone.DNS64
	if !d.applies(r) {
		return o
	}
	if o == Forward || o == WouldWait {
		r.mayBecome(fromDNS64)
	}
	if o = r.finishForward(o); o != Answered || r.err != nil || !d.needsSynthesis(r) {
		return o
	}
	return rt.synthesize(r)
}

// unknownTTL is the maximum TTL of a synthesized address, in seconds, if the negative answer
// has no SOA record (RFC 6147, 5.1.7).
const unknownTTL = 600

// synthesize asks for the IPv4 addresses of r's name, through the whole path, and replies with
// addresses made of them.
func (rt *Routes) synthesize(r *Request) Outcome {
	maxTTL, ok := r.reply.FirstTTL(wire.Authority, wire.TypeSOA)
	if !ok {
		maxTTL = unknownTTL
	}
	sub := newSubquery()
	defer sub.release()
	name := r.Query.Packet[wire.HeaderLen : wire.HeaderLen+len(r.Query.Name())] // in the client's case
	if !sub.ask(r, name, wire.TypeA) {
		return Answered
	}
	if sub.finishForward(rt.Resolve(&sub.Request)) == WouldWait {
		r.mayBecome(fromDNS64)
		return WouldWait
	}
	if sub.verdicts&dropped != 0 { // the client may not have them
		return Answered
	}
	r.source, r.ordered, r.err = fromDNS64, sub.ordered, sub.err
	r.note(stepOf[fromDNS64], Answered, "IPv6 addresses are made of the IPv4 addresses")
	if err := r.reply.Synthesize64(&sub.reply, &r.zone.DNS64.prefix, maxTTL); err != nil {
		if !r.mayTakeLong() { // to log the error
			return WouldWait
		}
		r.err = err
		return r.fail(wire.ServFail)
	}
	return Answered
}
