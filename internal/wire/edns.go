package wire

// Options of the OPT record (RFC 6891, 6.1.2) that this module reads or writes.
const (
	optionNSID      = 3  // RFC 5001, 2.3
	optionKeepalive = 11 // RFC 7828, 3.1
	optionEDE       = 15 // RFC 8914, 2
)

// EDE is the INFO-CODE of an extended DNS error (RFC 8914, 4).
type EDE uint16

// The extended errors that this module sends.
const (
	EDEOther    EDE = 0
	EDEBlocked  EDE = 15
	EDEFiltered EDE = 17
)

// MaxNSID is the maximum length of the server's identifier, in bytes. With the longest
// question and an extended error it fits into the 512 bytes that every client accepts.
const MaxNSID = 200

// MaxEDEText is the maximum length of an extended error's text, in bytes. The text is omitted
// from a reply that has no room for it.
const MaxEDEText = 100

// optionHead is the length of an option's code and length; edeLen is that of an extended
// error without text.
const (
	optionHead = 4
	edeLen     = optionHead + 2
)

// readOptions reads the options in the OPT record's RDATA, up to the first malformed one.
func (q *Query) readOptions(data []byte) {
	for len(data) >= optionHead {
		end := optionHead + int(u16(data[2:]))
		if end > len(data) {
			return
		}
		switch u16(data) {
		case optionNSID:
			q.NSID = true
		case optionKeepalive:
			q.Keepalive = true
		}
		data = data[end:]
	}
}

// SetNSID adds the server's identifier to the reply's OPT record, if it has one. id has at
// most [MaxNSID] bytes; "" removes it. [Reply.Reset] keeps it.
func (r *Reply) SetNSID(id string) { r.nsid = id }

// SetEDE adds an extended error to the reply's OPT record, if it has one.
func (r *Reply) SetEDE(code EDE) { r.SetEDEText(code, "") }

// SetEDEText is [Reply.SetEDE] with a text of at most [MaxEDEText] bytes.
func (r *Reply) SetEDEText(code EDE, text string) { r.ede, r.explained, r.edeText = code, true, text }

// CopyEDE copies other's extended error.
func (r *Reply) CopyEDE(other *Reply) {
	r.ede, r.explained, r.edeText = other.ede, other.explained, other.edeText
}

// optionsLen returns the length of the OPT record's options.
func (r *Reply) optionsLen() (n int) {
	if r.explained {
		n = edeLen + len(r.edeText)
	}
	if r.nsid != "" {
		n += optionHead + len(r.nsid)
	}
	return n
}

// appendOptions appends the OPT record's options.
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
