package resolver

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TSIG verifies the signatures of queries (RFC 8945). It is immutable and safe for concurrent use.
type TSIG struct{ settings config.TSIG }

// NewTSIG returns the TSIG of a server block.
func NewTSIG(settings *config.TSIG) *TSIG { return &TSIG{*settings} }

// authenticate reports whether the path may go on with r. Otherwise the reply is an error: REFUSED for a query that has to be signed and
// is not, NOTAUTH for one with a wrong signature, FORMERR for one whose TSIG record is not valid.
func (t *TSIG) authenticate(r *Request) bool {
	under := func(zone wire.Name) bool { return wire.Under(r.Query.Name(), zone) }
	if !slices.ContainsFunc(t.settings.Zones, under) {
		return true
	}
	var ok bool
	switch r.tsig, ok = wire.VerifyTSIG(&r.Query, t.settings.Keys, time.Now()); {
	case !ok:
		r.fail(wire.FormErr)
		r.note(stepTSIG, Answered, "the TSIG record is malformed, or not the last one")
	case r.tsig == nil && (t.settings.All || slices.Contains(t.settings.Types, r.Query.Type)):
		r.fail(wire.Refused)
		r.note(stepTSIG, Answered, "the query must be signed (`require`), and is not")
	case r.tsig != nil && r.tsig.Err() != wire.NoError:
		r.fail(wire.NotAuth)
		r.note(stepTSIG, Answered, fmt.Sprintf("the signature is not valid: error %d of TSIG", r.tsig.Err()))
	default:
		return true
	}
	return false
}

// message completes the reply and signs it if the query was signed. The message has at most limit bytes, except where the question and
// the TSIG record alone are longer: then it is no longer than the query.
func (r *Request) message(limit int) []byte {
	if r.tsig == nil {
		return r.reply.Finish(limit)
	}
	return r.tsig.Sign(r.reply.Finish(limit-r.tsig.Len()), time.Now())
}
