package wire

import "iter"

// QuestionEnd is the offset behind the question section of q, and of replies to it.
func (q *Query) QuestionEnd() int { return q.questionEnd() }

// Records goes over the records of reply, a whole reply to q, in order, with the section
// that each is in. It ends early at a record that leaves the message.
func (q *Query) Records(reply []byte) iter.Seq2[Section, Record] {
	return func(yield func(Section, Record) bool) {
		off := q.questionEnd()
		for s := Answer; s <= Additional; s++ {
			for range u16(reply[6+2*s:]) {
				r, ok := readRecord(reply, off)
				if !ok || !yield(s, r) {
					return
				}
				off = r.End
			}
		}
	}
}

// TTLOffset is the offset of the record's TTL.
func (r Record) TTLOffset() int { return r.ttlOffset() }
