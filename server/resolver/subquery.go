package resolver

import (
	"sync"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/rewrite"
)

// subquery is a request on behalf of another one, with its own buffers. Subqueries are reused.
type subquery struct {
	Request
	change rewrite.Change // of a query that is asked in another form
	env    viewEnv        // of the query that change is of
	name   [wire.MaxName]byte
	packet [packetBuffer]byte
	out    [replyBuffer]byte
}

// packetBuffer is the size of the longest query that is made here: header, the longest name,
// type and class, and an OPT record of 11 bytes.
const packetBuffer = wire.HeaderLen + wire.MaxName + 4 + 11

// replyBuffer is the size that reply buffers start with. Nearly all replies are smaller than
// 1,232 bytes, what fits into one packet everywhere (DNS flag day 2020).
const replyBuffer = 2048

var subqueries = sync.Pool{New: func() any { return new(subquery) }}

// newSubquery returns a subquery, which the caller releases.
func newSubquery() *subquery { return subqueries.Get().(*subquery) }

// release returns s to the pool.
func (s *subquery) release() {
	s.result = result{} // zones and pools may be gone before the next time
	s.env, s.Query.Options = viewEnv{}, nil
	s.ctx, s.budget, s.lookups, s.trace = nil, nil, nil, nil
	subqueries.Put(s)
}

// ask makes s the request for name and qtype on behalf of r's client; false if that is no valid
// query.
func (s *subquery) ask(r *Request, name []byte, qtype uint16) bool {
	r.derive(&s.Request)
	return r.parse(&s.Request, name, qtype, s.packet[:], s.out[:])
}

// askIn makes s the request for the first base bytes of r's name, in the client's case,
// followed by domain; false if that name is too long.
func (s *subquery) askIn(r *Request, base int, domain wire.Name) bool {
	if base+len(domain) > wire.MaxName {
		return false
	}
	n := copy(s.name[:], r.Query.Packet[wire.HeaderLen:wire.HeaderLen+base])
	n += copy(s.name[n:], domain)
	return s.ask(r, s.name[:n], r.Query.Type)
}
