package resolver

import (
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// maxSources is how many answers a reply along a search path may be made of to be copied: those of its names in the
// cluster, and of a few search domains of the node.
const maxSources = 8

// ReplySources collects, while a client's search path is followed, the answers that the reply is made of: the denials of
// the names that do not exist, and the answer for the one that does. It is scratch space for the copies of one request's
// replies.
type ReplySources struct {
	base    int          // bytes of the client's name in front of the domains of its path
	refusal reuseRefusal // why the reply may not be copied
	ended   bool         // the path was followed to its end, without waiting
	judged  bool         // an access list was asked about the client
	n       int
	list    [maxSources]searchSource
	// first is what the source of the first name says of copies, last that of the last one.
	first, last            Reusable
	expires                time.Duration // the least of all; 0 is never
	fromCluster, fromCache bool
	marks                  []epoch.Mark // of all answers, each once, in allMarks
	allMarks, moreMarks    [2 * maxSources]epoch.Mark
}

// searchSource is where the answer for one name came from. domain is "" for the client's own name.
type searchSource struct {
	zone   *Zone
	domain wire.Name
	source source
	denial bool
}

// begin makes s ready for the search path of r, whose own name does not exist. A nil s collects nothing.
func (s *ReplySources) begin(r *Request, base int) {
	if s == nil {
		return
	}
	s.base, s.n, s.ended, s.judged, s.refusal = base, 0, false, false, reusable
	s.expires, s.fromCluster, s.fromCache, s.marks = 0, false, false, s.allMarks[:0]
	s.add(r, "")
}

// add adds the answer to x, which asks for the client's name in domain.
func (s *ReplySources) add(x *Request, domain wire.Name) {
	if s == nil || s.refusal != reusable {
		return
	}
	refusal, t := x.refuseReuse(), Reusable{}
	if refusal == reusable {
		t, refusal = x.sourceTerms()
	}
	switch {
	case refusal == reusable && s.n < len(s.list):
		s.put(x, domain, &t)
	case s.n == 0:
		s.refusal = refusal
	default:
		s.refusal = refusedSearch
	}
}

// put adds the answer to x, which may be reused as t says.
func (s *ReplySources) put(x *Request, domain wire.Name, t *Reusable) {
	s.judged = s.judged || x.verdicts&byACL != 0
	s.list[s.n] = searchSource{zone: x.zone, domain: domain, source: x.source, denial: t.denial}
	s.marks = addMark(addMark(s.marks, t.Mark), t.hosts)
	if s.n++; s.n == 1 {
		s.first = *t
	}
	s.last = *t
	s.fromCluster, s.fromCache = s.fromCluster || t.FromCluster, s.fromCache || t.FromCache
	if t.Expires != 0 && (s.expires == 0 || t.Expires < s.expires) {
		s.expires = t.Expires
	}
}

// end says that nothing is to be added.
func (s *ReplySources) end() {
	if s != nil {
		s.ended = true
	}
}

// terms returns how the reply to r, whose search path was followed, may be sent again: as long as all answers that it is
// made of.
func (s *ReplySources) terms(r *Request) (t Reusable, refusal reuseRefusal) {
	switch {
	case s == nil || !s.ended:
		return Reusable{}, refusedSearch
	case s.refusal != reusable:
		return Reusable{}, s.refusal
	}
	t = s.first
	if r.viaSearch {
		t = s.last
	}
	t.FromCluster, t.FromCache, t.Expires = s.fromCluster, s.fromCache, s.expires
	t.More = s.more()
	for _, m := range s.marks {
		if m.Index != t.Mark.Index || m.Value != t.Mark.Value {
			t.More = append(t.More, m)
		}
	}
	return t, reusable
}

// more returns an empty list with room for [reply.Terms.More].
func (s *ReplySources) more() []epoch.Mark {
	if s == nil {
		return nil
	}
	return s.moreMarks[:0]
}

// addMark returns list with m, unless it has it or m is the zero Mark.
func addMark(list []epoch.Mark, m epoch.Mark) []epoch.Mark {
	if m == (epoch.Mark{}) || slices.ContainsFunc(list, func(o epoch.Mark) bool { return o.Index == m.Index && o.Value == m.Value }) {
		return list
	}
	return append(list, m)
}

// others returns where the answers came from for the names other than r's own.
func (s *ReplySources) others(r *Request) (list []replyPart) {
	var name [wire.MaxName]byte
	for _, from := range s.list[1:s.n] {
		n := copy(name[:], r.Query.Packet[wire.HeaderLen:wire.HeaderLen+s.base])
		n += copy(name[n:], from.domain)
		list = append(list, replyPart{
			zone: from.zone, query: wire.AppendQuery(nil, r.Query.ID, name[:n], r.Query.Type, &r.Query, wire.MinUDP),
			source: from.source, denial: from.denial,
		})
	}
	return list
}
