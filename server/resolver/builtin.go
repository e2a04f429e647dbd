package resolver

import (
	"math/rand/v2"
	"os"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// verdicts are what ACLs, policies, response policy zones, local names and `aaaa` have decided about a query. At most one of the bits in
// anyVerdict is set.
type verdicts uint16

const (
	allowed     verdicts = 1 << iota // by an ACL
	blocked                          // REFUSED
	filtered                         // NOERROR without records
	dropped                          // no reply
	localhost                        // the name is below localhost
	listed                           // an ACL has judged other names than the question's
	hidden                           // NXDOMAIN: views keep all names in the reply from the client
	byFamily                         // the reply depends on whether the client is a pod without an IPv6 address
	byPolicy                         // the reply depends on the DNSPolicies that bind the client
	forbidden                        // REFUSED or NXDOMAIN: by a DNSPolicy
	audited                          // a DNSPolicy or a rule of `rpz` in audit mode would deny the question
	byRule                           // what Request.rpz says: a rule of `rpz`
	byNamespace                      // a rule of `rpz` is not for all clients
)

const (
	anyVerdict = allowed | anyDenial
	anyDenial  = blocked | filtered | dropped | hidden | forbidden | byRule
)

// builtin is the step of answers that need no data source; false if it leaves the query to
// the steps after it.
func (z *Zone) builtin(r *Request) bool {
	if z.Local != nil && z.Local.answer(r) {
		r.note(stepOf[fromLocal], Answered, "a name of localhost or the loopback zones")
		return true
	}
	if z.Any && r.Query.Type == wire.TypeANY {
		r.reply.Add(wire.Answer, wire.AtQuestion, wire.TypeHINFO, anyTTL, []byte(anyData))
		r.source = fromAny
		r.note(stepOf[fromAny], Answered, "type ANY is not resolved (RFC 8482)")
		return true
	}
	return false
}

// The answer to ANY (RFC 8482, 4.2), as CoreDNS gives it.
const (
	anyTTL  = 8482
	anyData = "\x0dANY obsoleted\x0cSee RFC 8482"
)

// whoami is the last step, for queries that no upstream takes. It answers with the client's
// address and port if the directive is set, else with an error.
func (z *Zone) whoami(r *Request) Outcome {
	switch {
	case z.Whoami:
	case z.refusesOthers(r.Query.Name()):
		r.note(stepZone, Answered, "the server block answers names of its zones only, and the name is in none of them")
		return r.fail(wire.Refused)
	default:
		r.note(stepZone, Answered, "no step of the server block answers the name, and no forward directive takes it")
		r.unanswered = true
		return r.fail(wire.ServFail)
	}
	r.reply.SetAuthoritative()
	r.source = fromWhoami
	r.note(stepOf[fromWhoami], Answered, "")
	client := r.Client.Addr().Unmap()
	switch {
	case client.Is4():
		a := client.As4()
		r.reply.Add(wire.Additional, wire.AtQuestion, wire.TypeA, 0, a[:])
	case client.Is6():
		a := client.As16()
		r.reply.Add(wire.Additional, wire.AtQuestion, wire.TypeAAAA, 0, a[:])
	}
	label := "_tcp" // also for TLS and HTTPS
	if r.Proto != TCP {
		label = "_udp"
	}
	port := r.Client.Port()
	srv := [7]byte{4: byte(port >> 8), 5: byte(port)} // priority, weight, port, the root
	r.reply.AddChild(wire.Additional, label, wire.TypeSRV, 0, srv[:])
	return Answered
}

// Chaos answers TXT queries of the class CH about the server. It is immutable and safe for
// concurrent use. A nil Chaos answers nothing.
type Chaos struct {
	version, host string
	authors       []string
}

// NewChaos makes the Chaos of cfg. version is what it tells unless cfg has another text.
func NewChaos(cfg *config.Chaos, version string) *Chaos {
	c := &Chaos{version: version, authors: cfg.Authors}
	if cfg.Version != "" {
		c.version = cfg.Version
	}
	var err error
	if c.host, err = os.Hostname(); err != nil {
		c.host = "localhost"
	}
	return c
}

// The names that are answered, in wire form.
const (
	chaosVersionBind   = "\x07version\x04bind\x00"
	chaosVersionServer = "\x07version\x06server\x00"
	chaosHostname      = "\x08hostname\x04bind\x00"
	chaosServerID      = "\x02id\x06server\x00" // RFC 4892
	chaosAuthors       = "\x07authors\x04bind\x00"
)

// answer answers r if its question is about the server; else it returns false and leaves the reply.
func (c *Chaos) answer(r *Request) bool {
	if c == nil || r.Query.Class != wire.ClassCH || r.Query.Type != wire.TypeTXT {
		return false
	}
	switch string(r.Query.Name()) {
	case chaosVersionBind, chaosVersionServer:
		r.reply.AddText(wire.Answer, wire.ClassCH, 0, c.version)
	case chaosHostname, chaosServerID:
		r.reply.AddText(wire.Answer, wire.ClassCH, 0, c.host)
	case chaosAuthors:
		for _, i := range rand.Perm(len(c.authors)) {
			r.reply.AddText(wire.Answer, wire.ClassCH, 0, c.authors[i])
		}
	default:
		return false
	}
	r.source = fromChaos
	r.note(stepOf[fromChaos], Answered, "a question about the server")
	return true
}
