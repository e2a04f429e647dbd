package wire

import "fmt"

// Append appends the message that p is made of to b, for [Query.Restore]: ID 0, the
// question in lower case, the TTLs as they came. p is not the zero Packed.
func (p Packed) Append(b []byte) []byte { return append(b, p.message()...) }

// Restore reads msg, what [Packed.Append] gave in this process or in another one, and
// packs it again. It is checked as strictly as what comes from an upstream, since
// whatever had it in the meantime may have changed it. q becomes the query that it is
// the reply to, with RD set and DO and CD as said. Its Packet is written over what it
// was before, so that who restores many allocates it once; it has no OPT record. The
// result holds no reference to msg or q. Errors wrap [ErrResponse]; q is of no use then.
func (q *Query) Restore(msg []byte, do, cd bool) (Response, error) {
	if len(msg) < HeaderLen || len(msg) > MaxMessage {
		return Response{}, fmt.Errorf("%w: %d bytes are no message", ErrResponse, len(msg))
	}
	if flags := u16(msg[2:]); flags&flagQR == 0 || flags>>opcodeShift&opcodeMask != 0 || u16(msg[4:]) != 1 {
		return Response{}, fmt.Errorf("%w: it is not the reply to a query with one question", ErrResponse)
	}
	flags := uint16(flagRD)
	if cd {
		flags |= flagCD
	}
	if !q.setQuestion(msg, flags) {
		return Response{}, fmt.Errorf("%w: its question is cut off or malformed", ErrResponse)
	}
	q.EDNS, q.DO = do, do
	return ParseResponse(msg, q)
}

// setQuestion makes q the query with flags for the first question of msg, which has a whole header.
func (q *Query) setQuestion(msg []byte, flags uint16) bool {
	end := skipName(msg, HeaderLen) + 4
	if end < HeaderLen+4 || end > len(msg) {
		return false
	}
	packet := append(q.Packet[:0], 0, 0, byte(flags>>8), byte(flags), 0, 1, 0, 0, 0, 0, 0, 0)
	packet = append(packet, msg[HeaderLen:end]...)
	return q.Parse(packet) == Serve
}
