package wire

import "slices"

// maxChain bounds the CNAMEs followed in one response. Public chains have fewer than ten.
const maxChain = 16

// followAliases follows the CNAMEs of the answer section (RFC 1034, 3.6.2) from the qname, in
// any order, and records whether they lead to an answer, or contradict one
// another:
//
//   - a name on the way has two CNAMEs with different targets (RFC 2181, 10.1);
//   - the CNAMEs form a loop;
//   - a name on the way has a record of the qtype beside its CNAME, and the chain leads
//     to none;
//   - there is an answer although the rcode is NXDOMAIN.
//
// All records must have been checked. It scans the answers once for each name, and
// takes what it reads after pointers from s.left.
func (s *responseScan) followAliases(msg []byte, q *Query) {
	if s.Answers > 0 && (s.Rcode == NoError || s.Rcode == NXDomain) {
		s.followChain(msg, q)
	}
}

// followChain is followAliases for a reply with answers.
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

// endChain records how the chain ends: whether the last owner has a record of the qtype, and
// whether one was beside an alias on the way.
func (s *responseScan) endChain(asked, beside bool) {
	s.Answered = asked && s.Rcode == NoError
	s.Contradictory = asked && s.Rcode == NXDomain || !asked && beside
}

// ownerRecords describes the answers of one owner.
type ownerRecords struct {
	alias     int  // offset of the target of its first CNAME, 0 if there is none
	ambiguous bool // another CNAME has another target
	asked     bool // it has a record of the qtype
}

// recordsOf returns what the answer section has for name, which is in lower case and
// uncompressed.
func (s *responseScan) recordsOf(msg []byte, q *Query, name []byte) (o ownerRecords) {
	var last uint16 // the pointer compared last (0: none), and same is the result
	same := false
	off := q.questionEnd()
	for range s.Answers {
		if s.left < 0 {
			break
		}
		rr, _ := readRecord(msg, off)
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

// addRecord adds rr, a record of the owner, to o.
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

// sameTarget compares the names at two offsets without regard to case.
func (s *responseScan) sameTarget(msg []byte, a, b int) bool {
	var buf [MaxName]byte
	n, _ := unpackName(buf[:], msg, a, &s.left)
	return s.left.equalNames(msg, b, buf[:n])
}
