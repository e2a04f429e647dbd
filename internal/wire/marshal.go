package wire

import "fmt"

// Append appends the message in p to b, for [Query.Restore]: with ID 0, the question in lower
// case, and the original TTLs. p must not be zero.
func (p Packed) Append(b []byte) []byte { return append(b, p.message()...) }

// Restore parses and packs msg, a message written by [Packed.Append] in this or another
// process. It checks msg like a reply from an upstream, because a file may have been changed,
// but allows more compression pointers. q becomes the query for the reply, with RD set, DO and CD as given, and no OPT
// record; the buffer of q.Packet is reused, so that a caller who restores many messages
// allocates it once. The response holds no reference to msg or q. Errors wrap [ErrResponse]; q
// must not be used after one.
func (q *Query) Restore(msg []byte, do, cd bool) (Response, error) {
	if len(msg) < HeaderLen || len(msg) > MaxMessage {
		return Response{}, fmt.Errorf("%w: a message cannot have %d bytes", ErrResponse, len(msg))
	}
	if flags := u16(msg[2:]); flags&flagQR == 0 || flags>>opcodeShift&opcodeMask != 0 || u16(msg[4:]) != 1 {
		return Response{}, fmt.Errorf("%w: not a reply to a query with one question", ErrResponse)
	}
	flags := flagRD
	if cd {
		flags |= flagCD
	}
	if !q.setQuestion(msg, flags) {
		return Response{}, fmt.Errorf("%w: the question is truncated or malformed", ErrResponse)
	}
	q.EDNS, q.DO = do, do
	// msg may be shorter than the reply that was accepted, whose OPT record is dropped and whose
	// names are compressed again. It has to be good for rewriting only.
	return parseResponse(msg, q, rewriteBudget(msg))
}

// setQuestion makes q the query with the first question of msg and the given flags. msg has a
// whole header.
func (q *Query) setQuestion(msg []byte, flags uint16) bool {
	end := skipName(msg, HeaderLen) + 4
	if end < HeaderLen+4 || end > len(msg) {
		return false
	}
	packet := append(q.Packet[:0], 0, 0, byte(flags>>8), byte(flags), 0, 1, 0, 0, 0, 0, 0, 0)
	packet = append(packet, msg[HeaderLen:end]...)
	return q.Parse(packet) == Serve
}
