package wire

import "slices"

// maxChain bounds the owners looked at along the CNAMEs of one response. Public chains
// have fewer than ten.
const maxChain = 16

// followAliases goes along the CNAMEs of the answer section (RFC 1034, 3.6.2) from the qname, in
// whatever order they stand, and says whether they lead to an answer, or contradict one
// another:
//
//   - a name on the way has two CNAMEs with different targets (RFC 2181, 10.1);
//   - the CNAMEs lead back to a name that they have passed;
//   - a name on the way has a record of the type asked for beside its CNAME, which leads
//     to none;
//   - there is an answer although the rcode says that there is no such name.
//
// All records must have been checked. It costs a walk over the answers for each name on
// the way, and takes what it reads behind pointers from s.left.
func (s *responseScan) followAliases(msg []byte, q *Query) {
	if s.Answers > 0 && (s.Rcode == NoError || s.Rcode == NXDomain) {
		s.followChain(msg, q)
	}
}

// followChain is follow where there is something to follow.
func (s *responseScan) followChain(msg []byte, q *Query) {
	var buf [MaxName]byte
	var passed [maxChain]int // the targets followed
	name, beside := q.Name(), false
	for i := range maxChain {
		o := s.recordsOf(msg, q, name)
		if o.ambiguous || o.alias > 0 && slices.Contains(passed[:i], o.alias) {
			s.Contradictory = true
			return
		}
		if o.alias == 0 || q.Type == TypeCNAME || q.Type == TypeANY {
			s.endChain(o.asked, beside)
			return
		}
		passed[i], beside = o.alias, beside || o.asked
		n, _ := unpackName(buf[:], msg, o.alias, &s.left)
		name = buf[:n]
	}
	s.Contradictory = beside
}

// endChain is the end of the way: whether there is what was asked for, and whether it was
// beside an alias on the way.
func (s *responseScan) endChain(asked, beside bool) {
	s.Answered = asked && s.Rcode == NoError
	s.Contradictory = asked && s.Rcode == NXDomain || !asked && beside
}

// ownerRecords is what the answer section has for one owner.
type ownerRecords struct {
	alias     int  // where the target of its first CNAME stands; 0: it has none
	ambiguous bool // another CNAME has another target
	asked     bool // it has a record of the type asked for
}

// recordsOf looks through the answers for those of name, lower case and uncompressed.
func (s *responseScan) recordsOf(msg []byte, q *Query, name []byte) (o ownerRecords) {
	var last uint16 // the pointer compared last, and what came of it; 0: none
	same := false
	off := q.questionEnd()
	for range s.Answers {
		rr, ok := readRecord(msg, off)
		if !ok || s.left < 0 {
			break
		}
		off = rr.End
		if at := u16(msg[rr.Start:]); at < 0xC000 || at != last {
			same, last = s.left.equalNames(msg, rr.Start, name), 0
			if at >= 0xC000 {
				last = at
			}
		}
		if same && rr.Class == q.Class {
			s.addRecord(msg, &o, rr, q.Type)
		}
	}
	return o
}

// addRecord adds rr, which is one of the owner's, to o.
func (s *responseScan) addRecord(msg []byte, o *ownerRecords, rr Record, asked uint16) {
	o.asked = o.asked || rr.Type == asked || asked == TypeANY
	switch {
	case rr.Type != TypeCNAME:
	case o.alias == 0:
		o.alias = rr.Data
	case !o.ambiguous:
		o.ambiguous = !s.sameTarget(msg, o.alias, rr.Data)
	}
}

// sameTarget compares the names at two offsets, without case.
func (s *responseScan) sameTarget(msg []byte, a, b int) bool {
	var buf [MaxName]byte
	n, _ := unpackName(buf[:], msg, a, &s.left)
	return s.left.equalNames(msg, b, buf[:n])
}
