package wire

import (
	"fmt"

	"github.com/miekg/dns"
)

// readBudget is how many more labels (each eight bytes of them) and pointers may be read behind compression pointers in
// one message; less than zero says that it was too many, and that the message is to be
// refused. A pointer has two bytes and may lead to a name of 127 labels with a pointer
// before each (RFC 1035, 4.1.4, bounds neither), so that without it a message can cost
// a hundred steps for each of its bytes. What stands before the first pointer of a name
// is not counted: its bytes are the record's own.
type readBudget int

const (
	// baseBudget is for short messages, whose few records may all have long names: 200
	// pointers to names of 20 labels.
	baseBudget = 4096
	// budgetPerByte allows 4,000 records in 64 KiB, with an owner and a name in the RDATA
	// that are never the ones before, three pointers deep with twelve labels behind
	// those. Half as much is met by large zones with deep names, double only costs.
	budgetPerByte = 2
)

// spend counts a label or a pointer that begins with the byte c. Every eight bytes of a
// label are as dear as another label.
func (s *readBudget) spend(c int) {
	*s--
	if c <= MaxLabel {
		*s -= readBudget(c >> 3)
	}
}

// newReadBudget is for a message of n bytes.
func newReadBudget(n int) readBudget { return baseBudget + budgetPerByte*readBudget(n) }

// equalNames reports whether the name at off is name, which is lower case and uncompressed.
// What it reads of msg must have been checked.
func (s *readBudget) equalNames(msg []byte, off int, name []byte) bool {
	pointed := false
	for at := 0; ; {
		n := int(msg[off])
		if pointed {
			s.spend(n)
		}
		if n&0xC0 == 0xC0 {
			if *s < 0 {
				return false
			}
			off, pointed = int(u16(msg[off:])&0x3FFF), true
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
	// objectName is what a name costs at least that becomes an object, in steps: an
	// allocation takes as long as some ten labels. RDATA may hold thousands of names
	// of a byte.
	objectName = 8
	// maxObjects bounds the bytes of all names in a message that becomes objects, which
	// have each name written out: 4,000 records with two names of 60 bytes each. They
	// take some ten nanoseconds a byte, and are for rare shapes.
	maxObjects readBudget = 8 * (MaxMessage + 1)
)

// Unpack reads msg into objects. It refuses what would take far longer than other messages
// of that length, for which miekg/dns has a bound for each name but none for all. Errors
// wrap [ErrResponse].
func Unpack(msg []byte) (*dns.Msg, error) {
	if left := maxObjects; !left.allows(msg) {
		return nil, fmt.Errorf("%w: its names are too long in all", ErrResponse)
	}
	m := new(dns.Msg)
	if err := m.Unpack(msg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResponse, err)
	}
	return m, nil
}

// allows counts the bytes of all names in msg, and reports whether there are not too many.
// What is broken ends the count, since it ends the reading, too.
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
	for range int(u16(msg[6:])) + int(u16(msg[8:])) + int(u16(msg[10:])) {
		r, ok := readRecord(msg, off)
		if !ok || s.spendNames(msg, off, 1) < 0 || *s < 0 {
			break
		}
		at, n := namesIn(msg, r)
		s.spendNames(msg[:r.End], at, n)
		off = r.End
	}
	return *s >= 0
}

// spendNames counts the bytes of n names that follow one another from off on; with n below
// zero they go on to the end of msg. It gives the offset behind them, -1 if one is broken
// or they are too many.
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

// namesIn is where the names in r's RDATA begin, and how many there are: below zero, they
// go on to its end. They are those of the types that miekg/dns reads. RDATA of less than
// four bytes has none but where their place is fixed: there is no room for two pointers.
func namesIn(msg []byte, r Record) (off, n int) {
	if shape, ok := rdataNames[r.Type]; ok {
		return r.Data + shape.head, shape.names
	}
	if shape, ok := objectNames[r.Type]; ok {
		return r.Data + shape.head, shape.names
	}
	off, n = variableNames(r.Type, msg[r.Data:r.End])
	return r.Data + off, n
}

// variableNames is namesIn for the types whose names stand at no fixed place, and for those
// that have none. off is an offset in data, their RDATA.
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

// gatewayNames is how many names a gateway of the kind is.
func gatewayNames(kind byte) int {
	if kind == gatewayName {
		return 1
	}
	return 0
}

// Types whose names stand at no fixed place.
const (
	typeIPSECKEY uint16 = 45
	typeHIP      uint16 = 55
	typeAMTRELAY uint16 = 260

	// gatewayName is the kind of gateway that is a name.
	gatewayName = 3
)

// objectNames says, for types that only miekg/dns reads and that have names at a fixed
// place, how many bytes are before them and how many they are. Nobody may compress them
// (RFC 3597, 4), and miekg/dns follows pointers in them.
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
