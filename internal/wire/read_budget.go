package wire

import (
	"fmt"

	"github.com/miekg/dns"
)

// readBudget is how many more labels and pointers may be read after compression pointers in
// one message; eight bytes of a label count as another label. If it is negative, the message
// is refused. A pointer has two bytes and may lead to a name of 127 labels with a pointer
// before each (RFC 1035, 4.1.4, bounds neither): without a budget writing out the names of a message
// could cost a hundred steps for each of its bytes. Labels before the first pointer of a name are not
// counted, because they are bytes of the record itself.
type readBudget int

const (
	// baseBudget allows 200 pointers to names of 20 labels, for short messages whose few
	// records all have long names.
	baseBudget = 4096
	// budgetPerByte is for large replies with many names. TestLarge has those that servers send: 64 KiB
	// of PTR records of an IPv6 address take 0.36 steps a byte, a whole zone 0.57.
	budgetPerByte = 1
	// aliasBudget is for following aliases: the labels compared, and the records passed over. A
	// chain of maxChain aliases takes less than 1,000, and 2,000 owners other than the qname 6,000.
	aliasBudget readBudget = 8192
	// objectBudget is for RDATA that miekg/dns reads, in bytes: 75 records of 60 bytes.
	objectBudget readBudget = 8192
	// objectRecord is the cost of an object, in bytes.
	objectRecord = 48
	// maxRepacked bounds the records of a message that is unpacked into objects to be rewritten. A
	// record takes 0.6 µs.
	maxRepacked = 100
)

// spend counts a label or a pointer that begins with the byte c. Every eight bytes of a label
// cost as much as another label.
func (s *readBudget) spend(c int) {
	*s--
	if c <= MaxLabel {
		*s -= readBudget(c >> 3)
	}
}

// newReadBudget returns the budget for a message of n bytes.
func newReadBudget(n int) readBudget { return baseBudget + budgetPerByte*readBudget(n) }

// equalNames reports whether the name at off equals name, which is in lower case and
// uncompressed. The name at off must have been checked. It counts every label that it compares.
func (s *readBudget) equalNames(msg []byte, off int, name []byte) bool {
	for at := 0; ; {
		n := int(msg[off])
		s.spend(n)
		if n&0xC0 == 0xC0 {
			off = pointerAt(msg, off)
			continue
		}
		if at >= len(name) || int(name[at]) != n {
			return false
		}
		if n == 0 {
			return true
		}
		for i := 1; i <= n; i++ {
			if lower[msg[off+i]] != name[at+i] {
				return false
			}
		}
		at, off = at+1+n, off+1+n
	}
}

const (
	// objectName is the cost of unpacking a name into an object, besides its bytes: an
	// allocation takes as long as some ten labels. RDATA may have thousands of one-byte names.
	objectName = 8
	// maxObjects bounds the bytes of all names in a message that is unpacked into objects,
	// where each name is uncompressed: 4,000 records with two names of 60 bytes each. A byte
	// takes some ten nanoseconds.
	maxObjects readBudget = 8 * (MaxMessage + 1)
)

// Unpack unpacks msg into objects. It refuses messages that would take far longer than others
// of their length: miekg/dns bounds each name, but not all together. Errors wrap
// [ErrResponse].
func Unpack(msg []byte) (*dns.Msg, error) { return unpackWithin(maxObjects, msg) }

// unpackWithin is Unpack with a budget.
func unpackWithin(left readBudget, msg []byte) (*dns.Msg, error) {
	if !left.allows(msg) {
		return nil, fmt.Errorf("%w: its names are too long in total", ErrResponse)
	}
	m := new(dns.Msg)
	if err := m.Unpack(msg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResponse, err)
	}
	return m, nil
}

// allows counts the bytes of all names in msg and reports whether the budget suffices. It
// stops at a malformed record, as unpacking does.
func (s *readBudget) allows(msg []byte) bool {
	if len(msg) < HeaderLen {
		return true
	}
	off := HeaderLen
	for range u16(msg[4:]) {
		if off = s.spendNames(msg, off, 1); off < 0 || *s < 0 {
			return *s >= 0
		}
		off += 4
	}
	for it := recordsOf(msg, off); it.next(); {
		if s.spendNames(msg, it.Start, 1) < 0 || *s < 0 {
			break
		}
		at, n := namesIn(msg, it.Record)
		s.spendNames(msg[:it.End], at, n)
	}
	return *s >= 0
}

// spendNames counts the bytes of n consecutive names at off; with a negative n, of all names
// to the end of msg. It returns the offset after them, or -1 if one is malformed or the
// budget is exceeded.
func (s *readBudget) spendNames(msg []byte, off, n int) int {
	var buf [MaxName]byte
	for ; n > 0 || n < 0 && off < len(msg); n-- {
		used, end := expandName(buf[:], msg, off, s)
		*s -= readBudget(used + objectName)
		if used == 0 || *s < 0 {
			return -1
		}
		off = end
	}
	return off
}

// namesIn returns the offset of the names in r's RDATA and their number; a negative number
// means up to its end. It knows the types that miekg/dns unpacks. For types without a fixed
// layout, RDATA of less than four bytes has no names: there is no room for two pointers.
func namesIn(msg []byte, r Record) (off, n int) {
	if shape, ok := shapeOf(r.Type); ok {
		return r.Data + shape.head, shape.names
	}
	if shape, ok := objectNames[r.Type]; ok {
		return r.Data + shape.head, shape.names
	}
	off, n = variableNames(r.Type, msg[r.Data:r.End])
	return r.Data + off, n
}

// variableNames is namesIn for types whose names have no fixed offset, and for those that
// have none. off is an offset in data, the RDATA.
func variableNames(t uint16, data []byte) (off, n int) {
	if len(data) < 4 {
		return 0, 0
	}
	switch t {
	case TypeNAPTR: // two numbers and three strings (RFC 3403, 4.1)
		off, n = 4, 1
		for range 3 {
			if off >= len(data) {
				return 0, 0
			}
			off += 1 + int(data[off])
		}
	case typeHIP: // lengths, an algorithm, two keys (RFC 8005, 5)
		return 4 + int(data[0]) + int(u16(data[2:])), -1
	case typeIPSECKEY: // RFC 4025, 2.1
		return 3, gatewayNames(data[1])
	case typeAMTRELAY: // RFC 8777, 4.2
		return 2, gatewayNames(data[1] & 0x7F)
	}
	return off, n
}

// gatewayNames returns the number of names in a gateway of that kind.
func gatewayNames(kind byte) int {
	if kind == gatewayName {
		return 1
	}
	return 0
}

// Types that only this file and plain_data.go use.
const (
	typeIPSECKEY uint16 = 45
	typeHIP      uint16 = 55
	typeCDS      uint16 = 59
	typeCDNSKEY  uint16 = 60
	typeAMTRELAY uint16 = 260

	// gatewayName is the gateway type of a domain name.
	gatewayName = 3
)

// objectNames has, for types that only miekg/dns unpacks and whose names have a fixed offset,
// the bytes before the names and their number. They must not be compressed (RFC 3597, 4),
// but miekg/dns follows pointers in them.
var objectNames = map[uint16]struct{ head, names int }{
	23:  {0, 1},  // NSAP-PTR
	46:  {18, 1}, // RRSIG
	47:  {0, 1},  // NSEC
	58:  {0, 2},  // TALINK
	64:  {2, 1},  // SVCB
	65:  {2, 1},  // HTTPS
	107: {2, 1},  // LP
	249: {0, 1},  // TKEY
	250: {0, 1},  // TSIG
}
