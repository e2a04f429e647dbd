package resolver

import "github.com/nodens-dns/nodens/internal/wire"

// verdicts are what is to be remembered of a query besides its reply. At most one of the
// verdicts is set.
type verdicts uint8

const (
	allowed   verdicts = 1 << iota // by an ACL
	blocked                        // the reply is REFUSED
	filtered                       // the reply holds nothing
	dropped                        // there is no reply
	localhost                      // asked for a name of the machine itself, other than localhost
	listed                         // an ACL was asked about other names than the question's
)

const (
	anyVerdict = allowed | anyDenial
	anyDenial  = blocked | filtered | dropped
)

// builtin is the step of answers that need no data source; false if it leaves the query to
// the steps after it.
func (z *Zone) builtin(r *Request) bool {
	if z.Local != nil && z.Local.answer(r) {
		return true
	}
	if z.Any && r.Query.Type == wire.TypeANY {
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeHINFO, anyTTL, []byte(anyData))
		r.source = fromAny
		return true
	}
	return false
}

// The answer to ANY (RFC 8482, 4.2), as CoreDNS gives it.
const (
	anyTTL  = 8482
	anyData = "\x0dANY obsoleted\x0cSee RFC 8482"
)

// whoami is the last step, of what nobody is there to be asked for: it answers with the
// client's own address and port, if the zone has that, or else SERVFAIL.
func (z *Zone) whoami(r *Request) Outcome {
	if !z.Whoami {
		return r.fail(wire.ServFail)
	}
	r.reply.SetAuthoritative()
	r.source = fromWhoami
	client := r.Client.Addr().Unmap()
	switch {
	case client.Is4():
		a := client.As4()
		r.reply.Add(wire.Additional, wire.AtQuestion, wire.TypeA, 0, a[:])
	case client.Is6():
		a := client.As16()
		r.reply.Add(wire.Additional, wire.AtQuestion, wire.TypeAAAA, 0, a[:])
	}
	label := "_tcp" // whatever is on top of it
	if r.Proto == UDP {
		label = "_udp"
	}
	port := r.Client.Port()
	srv := [7]byte{4: byte(port >> 8), 5: byte(port)} // priority, weight, port, the root
	r.reply.AddChild(wire.Additional, label, wire.TypeSRV, 0, srv[:])
	return Answered
}
