// Package tsig verifies the signatures of queries (RFC 8945), as CoreDNS's tsig directive does.
//
// A [TSIG] has the keys of one server block, and says for which zones and types of queries a signature is required. What
// signs the replies to a signed query is package wire's.
package tsig

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// TSIG is the tsig directive of a server block. It is immutable and safe for concurrent use.
type TSIG struct{ settings config.TSIG }

// New returns the TSIG of a server block.
func New(settings *config.TSIG) *TSIG { return &TSIG{*settings} }

// Verify verifies the signature of q. The refusal is REFUSED for a query that has to be signed and is not, NOTAUTH for one with a wrong
// signature, FORMERR for one whose TSIG record is not valid. See [authority.Verifier].
func (t *TSIG) Verify(q *wire.Query) (s authority.Signer, refusal wire.Rcode, why string) {
	under := func(zone wire.Name) bool { return wire.Under(q.Name(), zone) }
	if !slices.ContainsFunc(t.settings.Zones, under) {
		return nil, wire.NoError, ""
	}
	signature, ok := wire.VerifyTSIG(q, t.settings.Keys, time.Now())
	if signature != nil {
		s = signature
	}
	switch {
	case !ok:
		return s, wire.FormErr, "the TSIG record is malformed, or not the last one"
	case s == nil && (t.settings.All || slices.Contains(t.settings.Types, q.Type)):
		return s, wire.Refused, "the query must be signed (`require`), and is not"
	case s != nil && signature.Err() != wire.NoError:
		return s, wire.NotAuth, fmt.Sprintf("the signature is not valid: error %d of TSIG", signature.Err())
	}
	return s, wire.NoError, ""
}
