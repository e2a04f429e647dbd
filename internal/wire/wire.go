// Package wire reads and writes DNS messages (RFC 1035, section 4) without making an object
// for each query.
//
// A [Query] is read in place from a packet. A [Reply] is written, record by
// record, into a buffer of the caller; its question section is the query's
// own, byte for byte, so that every owner name compressed to it keeps the case
// the client used. A [Packed] answer is a whole reply as it is kept between
// queries: checked once on arrival, then only copied, with its TTLs replaced.
// Names in the package are in wire form and in lower case: a length byte before
// each label and a zero byte at the end.
//
// What reading a message costs is bounded by its length. [ParseResponse] reads the labels that
// compression pointers lead to once, however many names share them, and refuses a message whose
// names would take more steps, written out, than a readBudget has; aliases and RDATA that
// miekg/dns reads have budgets of their own. A reply of 64 KiB that is taken takes two to three times
// as long as one of 4,000 addresses at most.
//
// To add a record type that a cluster or hosts answer can hold: append its
// RDATA with [Reply.Add]; if its RDATA carries names that old servers compress
// (RFC 3597, section 4, lists them all), it is already in rdataNames.
package wire

// Record types that this module writes or inspects (RFC 1035 and successors).
const (
	TypeA      uint16 = 1
	TypeNS     uint16 = 2
	TypeCNAME  uint16 = 5
	TypeSOA    uint16 = 6
	TypePTR    uint16 = 12
	TypeHINFO  uint16 = 13
	TypeMX     uint16 = 15
	TypeTXT    uint16 = 16
	TypeSIG    uint16 = 24
	TypeAAAA   uint16 = 28
	TypeSRV    uint16 = 33
	TypeOPT    uint16 = 41
	TypeDS     uint16 = 43
	TypeRRSIG  uint16 = 46
	TypeNSEC   uint16 = 47
	TypeDNSKEY uint16 = 48
	TypeNSEC3  uint16 = 50
	TypeTLSA   uint16 = 52
	TypeSVCB   uint16 = 64
	TypeHTTPS  uint16 = 65
	TypeIXFR   uint16 = 251
	TypeAXFR   uint16 = 252
	TypeANY    uint16 = 255
	TypeCAA    uint16 = 257
)

// ClassIN is the only class that is resolved; any other is REFUSED. A few names of ClassCH are about
// the server itself.
const (
	ClassIN uint16 = 1
	ClassCH uint16 = 3
)

// Rcode is a response code, extended by EDNS to twelve bits (RFC 6891, 6.1.3).
type Rcode uint16

// The rcodes that this module writes or inspects.
const (
	NoError   Rcode = 0
	FormErr   Rcode = 1
	ServFail  Rcode = 2
	NXDomain  Rcode = 3
	NotImp    Rcode = 4
	Refused   Rcode = 5
	NotAuth   Rcode = 9
	BadVers   Rcode = 16
	BadCookie Rcode = 23 // RFC 7873, 8
)

// Flags are bits of a message's header, as they stand in its second 16-bit word (RFC 1035, 4.1.1).
type Flags uint16

// The flags that a Corefile may change.
const (
	FlagAA Flags = 1 << 10 // authoritative answer
	FlagRD Flags = 1 << 8  // recursion desired
	FlagRA Flags = 1 << 7  // recursion available
)

// Header bits, as they stand in the second 16-bit word (RFC 1035, 4.1.1; RFC
// 4035, 3.2 for AD and CD).
const (
	flagQR = 1 << 15
	flagAA = uint16(FlagAA)
	flagTC = 1 << 9
	flagRD = uint16(FlagRD)
	flagRA = uint16(FlagRA)
	flagAD = 1 << 5
	flagCD = 1 << 4

	opcodeShift  = 11
	opcodeNotify = 4 // RFC 1996, 3
	opcodeMask   = 0xF
	rcodeMask    = 0xF
)

const (
	// HeaderLen is the length of the header (RFC 1035, 4.1.1).
	HeaderLen = 12
	// MaxName is the longest name in wire form, its root byte included (RFC
	// 1035, 3.1).
	MaxName = 255
	// MaxLabel is the longest label (RFC 1035, 3.1).
	MaxLabel = 63
	// MaxMessage is the longest message: the TCP length prefix has 16 bits.
	MaxMessage = 65535
	// MinUDP is the size that every client accepts over UDP without EDNS. A smaller size in
	// an OPT record means this size (RFC 1035, 4.2.1; RFC 6891, 6.2.3).
	MinUDP = 512
	// SafeUDP is the largest payload that no path fragments: IPv6's least MTU of 1280
	// less the IPv6 and UDP headers (RFC 9715).
	SafeUDP = 1232
	// optLen is an OPT record without options: root owner, type, class, TTL
	// and RDLENGTH.
	optLen = 11
	// maxPointers bounds the compression pointers followed in one name: as many
	// as fit between the 127 labels that a name can have at most.
	maxPointers = 126
)

// questionPointer is the compression pointer to the question's name, which
// always starts right behind the header.
const questionPointer = 0xC000 | HeaderLen

func u16(b []byte) uint16 { return uint16(b[0])<<8 | uint16(b[1]) }

func u32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func put16(b []byte, v uint16) { b[0], b[1] = byte(v>>8), byte(v) }

func put32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}

func append16(b []byte, v uint16) []byte { return append(b, byte(v>>8), byte(v)) }

func append32(b []byte, v uint32) []byte {
	return append(b, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}
