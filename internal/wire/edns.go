package wire

// Options of the OPT record (RFC 6891, 6.1.2) that this module reads or writes.
const (
	optionNSID = 3  // RFC 5001, 2.3
	optionEDE  = 15 // RFC 8914, 2
)

// EDE is an extended error's INFO-CODE (RFC 8914, 4).
type EDE uint16

// The extended errors this module gives.
const (
	EDEOther    EDE = 0
	EDEBlocked  EDE = 15
	EDEFiltered EDE = 17
)

// MaxNSID is the most bytes an identifier of the server may have. Behind the longest
// question, with an extended error, it fits into the 512 bytes that every client takes;
// thirty more would not. The longest host name has 64.
const MaxNSID = 200

// MaxEDEText is the most bytes of text an extended error may have: half cuts a sentence,
// double leaves no place for records in the 512 bytes that every client takes. Where it does
// not fit it is left out.
const MaxEDEText = 100

// optionHead is an option's code and length; edeLen is a whole extended error without
// text.
const (
	optionHead = 4
	edeLen     = optionHead + 2
)

// readOptions notes which of the options in the OPT record's RDATA are asked for. What
// is behind a broken one is passed over.
func (q *Query) readOptions(data []byte) {
	for len(data) >= optionHead {
		end := optionHead + int(u16(data[2:]))
		if end > len(data) {
			return
		}
		if u16(data) == optionNSID {
			q.NSID = true
		}
		data = data[end:]
	}
}

// SetNSID has the reply name the server in an option of its OPT record, if it has one.
// id may have [MaxNSID] bytes; "" takes it back. Unlike all else it outlives
// [Reply.Reset], since it says nothing of the answer.
func (r *Reply) SetNSID(id string) { r.nsid = id }

// SetEDE has the reply say in an option of its OPT record, if it has one, why it is
// what it is.
func (r *Reply) SetEDE(code EDE) { r.SetEDEText(code, "") }

// SetEDEText is [Reply.SetEDE] with a text for people, of [MaxEDEText] bytes at most.
func (r *Reply) SetEDEText(code EDE, text string) { r.ede, r.explained, r.edeText = code, true, text }

// CopyEDE has the reply say what other does of why it is what it is.
func (r *Reply) CopyEDE(other *Reply) {
	r.ede, r.explained, r.edeText = other.ede, other.explained, other.edeText
}

// optionsLen is what the options of the OPT record take.
func (r *Reply) optionsLen() (n int) {
	if r.explained {
		n = edeLen + len(r.edeText)
	}
	if r.nsid != "" {
		n += optionHead + len(r.nsid)
	}
	return n
}

// appendOptions appends what optionsLen counts.
func (r *Reply) appendOptions() {
	if r.explained {
		r.b = append16(r.b, optionEDE)
		r.b = append16(r.b, uint16(edeLen-optionHead+len(r.edeText)))
		r.b = append16(r.b, uint16(r.ede))
		r.b = append(r.b, r.edeText...)
	}
	if r.nsid != "" {
		r.b = append16(r.b, optionNSID)
		r.b = append16(r.b, uint16(len(r.nsid)))
		r.b = append(r.b, r.nsid...)
	}
}
