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
	base    int         // bytes of the client's name in front of the domains of its path
	refusal copyRefusal // why the reply may not be copied
	ended   bool        // the path was followed to its end, without waiting
	judged  bool        // an access list was asked about the client
	n       int
	list    [maxSources]searchSource
	// first is what the source of the first name says of copies, last that of the last one.
	first, last            Copy
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
	s.base, s.n, s.ended, s.judged, s.refusal = base, 0, false, false, copyAllowed
	s.expires, s.fromCluster, s.fromCache, s.marks = 0, false, false, s.allMarks[:0]
	s.add(r, "")
}

// add adds the answer to x, which asks for the client's name in domain.
func (s *ReplySources) add(x *Request, domain wire.Name) {
	if s == nil || s.refusal != copyAllowed {
		return
	}
	refusal, c := x.copyRefusal(), Copy{}
	if refusal == copyAllowed {
		c, refusal = x.sourceCopy()
	}
	switch {
	case refusal == copyAllowed && s.n < len(s.list):
		s.put(x, domain, &c)
	case s.n == 0:
		s.refusal = refusal
	default:
		s.refusal = refusedSearch
	}
}

// put adds the answer to x, of which c says how it may be copied.
func (s *ReplySources) put(x *Request, domain wire.Name, c *Copy) {
	s.judged = s.judged || x.verdicts&byACL != 0
	s.list[s.n] = searchSource{zone: x.zone, domain: domain, source: x.source, denial: c.denial}
	s.marks = addMark(addMark(s.marks, c.Mark), c.hosts)
	if s.n++; s.n == 1 {
		s.first = *c
	}
	s.last = *c
	s.fromCluster, s.fromCache = s.fromCluster || c.FromCluster, s.fromCache || c.FromCache
	if c.Expires != 0 && (s.expires == 0 || c.Expires < s.expires) {
		s.expires = c.Expires
	}
}

// end says that nothing is to be added.
func (s *ReplySources) end() {
	if s != nil {
		s.ended = true
	}
}

// copyOf returns how the reply to r, whose search path was followed, may be copied: as long as all answers that it is
// made of.
func (s *ReplySources) copyOf(r *Request) (c Copy, refusal copyRefusal) {
	switch {
	case s == nil || !s.ended:
		return Copy{}, refusedSearch
	case s.refusal != copyAllowed:
		return Copy{}, s.refusal
	}
	c = s.first
	if r.viaSearch {
		c = s.last
	}
	c.FromCluster, c.FromCache, c.Expires = s.fromCluster, s.fromCache, s.expires
	c.More = s.more()
	for _, m := range s.marks {
		if m.Index != c.Mark.Index || m.Value != c.Mark.Value {
			c.More = append(c.More, m)
		}
	}
	return c, copyAllowed
}

// more returns an empty list with room for [Copy.More].
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
func (s *ReplySources) others(r *Request) (list []copiedSource) {
	var name [wire.MaxName]byte
	for _, from := range s.list[1:s.n] {
		n := copy(name[:], r.Query.Packet[wire.HeaderLen:wire.HeaderLen+s.base])
		n += copy(name[n:], from.domain)
		list = append(list, copiedSource{
			zone: from.zone, query: wire.AppendQuery(nil, r.Query.ID, name[:n], r.Query.Type, &r.Query, wire.MinUDP),
			source: from.source, denial: from.denial,
		})
	}
	return list
}
