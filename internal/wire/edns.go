package wire

import (
	"iter"
	"slices"
)

// Options of the OPT record (RFC 6891, 6.1.2) that this module reads or writes.
const (
	OptionNSID      = 3  // RFC 5001, 2.3
	OptionSubnet    = 8  // RFC 7871, 6
	OptionCookie    = 10 // RFC 7873, 4
	optionKeepalive = 11 // RFC 7828, 3.1
	optionPadding   = 12 // RFC 7830, 3
	optionEDE       = 15 // RFC 8914, 2
)

// EDE is the INFO-CODE of an extended DNS error (RFC 8914, 4).
type EDE uint16

// The extended errors that this module sends.
const (
	EDEOther                EDE = 0
	EDEStaleAnswer          EDE = 3
	EDEForgedAnswer         EDE = 4
	EDECachedError          EDE = 13
	EDENotReady             EDE = 14
	EDEBlocked              EDE = 15
	EDEFiltered             EDE = 17
	EDEProhibited           EDE = 18
	EDEStaleNXDomain        EDE = 19
	EDENoReachableAuthority EDE = 22
	EDENetworkError         EDE = 23
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

// readOptions reads the options in the OPT record's RDATA. It is false if they don't end where the RDATA does. The data of
// options that nobody here reads may be anything (RFC 6891, 6.1.2).
func (q *Query) readOptions(data []byte) bool {
	for len(data) > 0 {
		if len(data) < optionHead {
			return false
		}
		end := optionHead + int(u16(data[2:]))
		if end > len(data) {
			return false
		}
		switch u16(data) {
		case OptionNSID:
			q.NSID = true
		case optionKeepalive:
			q.Keepalive = true
		case optionPadding:
			q.Padded = true
		}
		data = data[end:]
	}
	return true
}

// MaxOptions is the maximum length of the options that a query to an upstream server carries, in bytes. With the
// longest name it stays below 1,232 bytes, what fits into one packet everywhere (DNS flag day 2020).
const MaxOptions = 900

// ClientOption returns the data of the first option with code in the query's OPT record; false if there is
// none. The data belong to q.Packet.
func (q *Query) ClientOption(code uint16) (data []byte, ok bool) {
	if !q.EDNS {
		return nil, false
	}
	for it := recordsOf(q.Packet, q.questionEnd()); it.next(); {
		if it.Type == TypeOPT {
			if data, ok = OptionData(q.Packet[it.Data:it.End], code); ok {
				return data, true
			}
		}
	}
	return nil, false
}

// findOption returns the offset of the first option with code in list, -1 if there is none up to the first
// malformed one.
func findOption(list []byte, code uint16) int {
	for at := 0; at+optionHead <= len(list); {
		end := at + optionHead + int(u16(list[at+2:]))
		if end > len(list) {
			return -1
		}
		if u16(list[at:]) == code {
			return at
		}
		at = end
	}
	return -1
}

// OptionData returns the data of the first option with code in list, options in wire form; false if there is none.
func OptionData(list []byte, code uint16) (data []byte, ok bool) {
	at := findOption(list, code)
	if at < 0 {
		return nil, false
	}
	return list[at+optionHead : at+optionHead+int(u16(list[at+2:]))], true
}

// ReplyOptions returns the options in the OPT record of msg, a reply that [Matches] a query, and its rcode with the part in that record
// (RFC 6891, 6.1.3). There are none without such a record, and if msg is malformed before it.
func ReplyOptions(msg []byte) (options []byte, rcode Rcode) {
	rcode = Rcode(u16(msg[2:]) & rcodeMask)
	if u16(msg[4:]) == 0 {
		return nil, rcode
	}
	off := skipName(msg, HeaderLen)
	if off < 0 || off+4 > len(msg) {
		return nil, rcode
	}
	for it := recordsOf(msg, off+4); it.next(); {
		if it.Type == TypeOPT {
			return msg[it.Data:it.End], Rcode(it.TTL>>24<<4) | rcode
		}
	}
	return nil, rcode
}

// HasOption reports whether list, options in wire form, has one with code.
func HasOption(list []byte, code uint16) bool { return findOption(list, code) >= 0 }

// SetOption makes data the data of the first option with code in list, options in wire form. It appends the
// option if there is none. data has at most 65,535 bytes and is not part of list.
func SetOption(list []byte, code uint16, data []byte) []byte {
	at := findOption(list, code)
	if at < 0 {
		at = len(list)
		list = append16(append16(list, code), 0)
	}
	end := at + optionHead + int(u16(list[at+2:]))
	list = slices.Replace(list, at+optionHead, end, data...)
	put16(list[at+2:], uint16(len(data)))
	return list
}

// RemoveOption removes all options with code from list, options in wire form.
func RemoveOption(list []byte, code uint16) []byte {
	for at := findOption(list, code); at >= 0; at = findOption(list, code) {
		list = slices.Delete(list, at, at+optionHead+int(u16(list[at+2:])))
	}
	return list
}

// OptionCodes iterates over the codes of list, options in wire form.
func OptionCodes(list []byte) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for len(list) >= optionHead && yield(u16(list)) {
			list = list[min(len(list), optionHead+int(u16(list[2:]))):]
		}
	}
}

// AppendOptions adds options in wire form to the OPT record at the end of b, a query of [AppendQuery].
func AppendOptions(b, options []byte) []byte {
	if len(options) > 0 {
		put16(b[len(b)-2:], uint16(len(options)))
	}
	return append(b, options...)
}

// QueryBlock and ReplyBlock are the lengths, in bytes, to a multiple of which queries and replies are padded on encrypted
// transports (RFC 8467, 4.1).
const (
	QueryBlock = 128
	ReplyBlock = 468
)

// PadOptions appends a padding option to list, the options of a message that has size bytes without them, so that it has a
// multiple of block.
func PadOptions(list []byte, size, block int) []byte {
	return SetOption(list, optionPadding, padding[:missing(size+len(list)+optionHead, block)])
}

// missing returns how much n is short of a multiple of block.
func missing(n, block int) int { return (block - n%block) % block }

// SetPadding makes [Reply.Finish] pad the message, if it has an OPT record, to a multiple of block bytes, or to its limit. 0 is no
// padding. [Reply.Reset] keeps it.
func (r *Reply) SetPadding(block int) { r.block = block }

// pad sets the length of the padding for a message of at most limit bytes, which is complete but for its OPT record.
func (r *Reply) pad(limit int) {
	n := len(r.b) + optLen + r.optionsLen() + optionHead
	if r.block > 0 && n <= limit {
		r.padding = optionHead + min(missing(n, r.block), limit-n)
	}
}

// SetNSID adds the server's identifier to the reply's OPT record, if it has one. id has at
// most [MaxNSID] bytes; "" removes it. [Reply.Reset] keeps it.
func (r *Reply) SetNSID(id string) { r.nsid = id }

// SetKeepalive adds the time for which the connection may be idle (RFC 7828) to the reply's OPT record, if it has one. idle is
// in tenths of a second; 0 removes it. [Reply.Reset] keeps it.
func (r *Reply) SetKeepalive(idle uint16) { r.keepalive = idle }

// SetEDE adds an extended error to the reply's OPT record, if it has one.
func (r *Reply) SetEDE(code EDE) { r.SetEDEText(code, "") }

// SetEDEText is [Reply.SetEDE] with a text of at most [MaxEDEText] bytes.
func (r *Reply) SetEDEText(code EDE, text string) { r.ede, r.explained, r.edeText = code, true, text }

// Explained reports whether the reply has an extended error.
func (r *Reply) Explained() bool { return r.explained }

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
	if r.keepalive != 0 {
		n += optionHead + 2
	}
	return n + r.padding
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
		r.b = append16(r.b, OptionNSID)
		r.b = append16(r.b, uint16(len(r.nsid)))
		r.b = append(r.b, r.nsid...)
	}
	if r.keepalive != 0 {
		r.b = append16(r.b, optionKeepalive)
		r.b = append16(r.b, 2)
		r.b = append16(r.b, r.keepalive)
	}
	if r.padding > 0 {
		r.b = append16(r.b, optionPadding)
		r.b = append16(r.b, uint16(r.padding-optionHead))
		r.b = append(r.b, padding[:r.padding-optionHead]...)
	}
}

// padding are the bytes of the option.
var padding [ReplyBlock]byte
