package wire

// ReplyBody is what a [Reply] has besides its question: records, flags and rcode. It is immutable and safe for concurrent
// use. Its records refer to the question by its place, so that it fits each question for the same name, in any letter
// case. The zero value is an empty reply.
type ReplyBody struct {
	b       []byte
	flags   uint16
	rcode   Rcode
	section Section
	count   [3]uint16
	full    bool
}

// Body returns a copy of r's body.
func (r *Reply) Body() ReplyBody {
	records := r.b[r.q.questionEnd():]
	return ReplyBody{
		b: append(make([]byte, 0, len(records)), records...), flags: r.flags, rcode: r.rcode, section: r.section, count: r.count, full: r.full,
	}
}

// SetBody makes b the body of r, which must have been started for the same name and type as the reply that b is of, and
// with the same limit.
func (r *Reply) SetBody(b ReplyBody) {
	r.Reset()
	r.b = append(r.b, b.b...)
	r.flags, r.rcode, r.section, r.count, r.full = b.flags, b.rcode, b.section, b.count, b.full
}

// Size returns the number of bytes of b's records.
func (b *ReplyBody) Size() int { return len(b.b) }
