package wire

import "slices"

// maxChain bounds the CNAMEs followed in one response. Public chains have fewer than ten.
const maxChain = 16

// countAnswer notes what followAliases needs of rr, a record of the answer section.
func (s *responseScan) countAnswer(q *Query, rr Record) {
	s.Answers++
	if isAsked(q, rr) {
		s.asked++
	}
	if rr.Type == TypeCNAME && rr.Class == q.Class {
		s.aliases = append(s.aliases, aliasRecord{uint16(rr.Start), uint16(rr.Data)})
	}
}

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
// All records must have been checked. What it reads is taken from [aliasBudget].
func (s *responseScan) followAliases(msg []byte, q *Query) {
	if s.Answers > 0 && (s.Rcode == NoError || s.Rcode == NXDomain) {
		s.followChain(msg, q)
	}
}

// followChain is followAliases for a reply with answers.
func (s *responseScan) followChain(msg []byte, q *Query) {
	var buf [MaxName]byte
	var passed [maxChain]uint16 // the targets followed
	name := q.Name()
	for i := range maxChain {
		target, ambiguous := s.aliasOf(msg, name)
		if ambiguous || target > 0 && slices.Contains(passed[:i], target) {
			s.Contradictory = true
			return
		}
		if target == 0 || q.Type == TypeCNAME || q.Type == TypeANY {
			s.endChain(msg, q, name, passed[:i])
			return
		}
		passed[i] = target
		n, _ := unpackName(buf[:], msg, int(target), &s.aliasesLeft)
		name = buf[:n]
	}
	s.Contradictory = s.anyAsked(msg, q, passed[:maxChain-1])
}

// endChain records how the chain ends: whether name, at its end, has a record of the qtype, or
// else a name on the way there has one beside its alias. passed are the targets on the way.
func (s *responseScan) endChain(msg []byte, q *Query, name []byte, passed []uint16) {
	asked := s.hasAsked(msg, q, name)
	s.Answered = asked && s.Rcode == NoError
	s.Contradictory = asked && s.Rcode == NXDomain || !asked && len(passed) > 0 && s.anyAsked(msg, q, passed[:len(passed)-1])
}

// anyAsked reports whether the qname or one of the targets has a record of the qtype.
func (s *responseScan) anyAsked(msg []byte, q *Query, targets []uint16) bool {
	if s.hasAsked(msg, q, q.Name()) {
		return true
	}
	var buf [MaxName]byte
	for _, t := range targets {
		n, _ := unpackName(buf[:], msg, int(t), &s.aliasesLeft)
		if s.hasAsked(msg, q, buf[:n]) {
			return true
		}
	}
	return false
}

// hasAsked reports whether name, which is in lower case and uncompressed, has a record of the
// qtype in the answer section.
func (s *responseScan) hasAsked(msg []byte, q *Query, name []byte) bool {
	var last uint16 // the pointer compared last, and not to name; 0: none
	off := q.questionEnd()
	for left := s.asked; left > 0 && s.aliasesLeft >= 0; s.aliasesLeft-- {
		rr, _ := readRecord(msg, off)
		off = rr.End
		if !isAsked(q, rr) {
			continue
		}
		left--
		at := u16(msg[rr.Start:])
		if at >= 0xC000 && at == last {
			continue
		}
		if s.aliasesLeft.equalNames(msg, rr.Start, name) {
			return true
		}
		last = at
	}
	return false
}

// isAsked reports whether rr, a record of the answer section, has q's type and class.
func isAsked(q *Query, rr Record) bool {
	return (rr.Type == q.Type || q.Type == TypeANY) && rr.Class == q.Class
}

// aliasRecord is the place of a CNAME in a message: its owner and its target.
type aliasRecord struct{ owner, target uint16 }

// aliasOf returns the offset of the target of name's first CNAME, 0 if there is none. name is in
// lower case and uncompressed. It is ambiguous if another CNAME has another target.
func (s *responseScan) aliasOf(msg, name []byte) (target uint16, ambiguous bool) {
	for _, a := range s.aliases {
		switch {
		case s.aliasesLeft < 0:
			return 0, false
		case !s.aliasesLeft.equalNames(msg, int(a.owner), name):
		case target == 0:
			target = a.target
		case !s.sameTarget(msg, target, a.target):
			return target, true
		}
	}
	return target, false
}

// sameTarget compares the names at two offsets without regard to case.
func (s *responseScan) sameTarget(msg []byte, a, b uint16) bool {
	var buf [MaxName]byte
	n, _ := unpackName(buf[:], msg, int(a), &s.aliasesLeft)
	return s.aliasesLeft.equalNames(msg, int(b), buf[:n])
}
