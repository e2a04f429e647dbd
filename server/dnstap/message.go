package dnstap

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Type is what a message is about.
type Type uint8

// The types that are sent, with their numbers in the schema.
const (
	ClientQuery    Type = 5
	ClientResponse Type = 6
)

// Protocol is how a query came, with its number in the schema.
type Protocol uint8

// The protocols.
const (
	UDP Protocol = 1
	TCP Protocol = 2
)

// Message is a query, or a reply. Its slices are read by [Tap.Send] and not kept.
type Message struct {
	Type     Type
	Protocol Protocol
	Client   netip.AddrPort
	// Query is when the query came, Response when the reply was ready; the zero time
	// is none.
	Query, Response time.Time
	// Packet is the query or the reply, as Type says; nil is not told.
	Packet []byte
	// Extra is text of the user's; nil is none.
	Extra []byte
}

// The numbers of the fields (dnstap.proto).
const (
	fieldIdentity = 1
	fieldVersion  = 2
	fieldExtra    = 3
	fieldMessage  = 14
	fieldKind     = 15 // of the payload; 1 is a message

	fieldType         = 1
	fieldFamily       = 2
	fieldProtocol     = 3
	fieldQueryAddress = 4
	fieldQueryPort    = 6
	fieldQuerySec     = 8
	fieldQueryNsec    = 9
	fieldQueryPacket  = 10
	fieldReplySec     = 12
	fieldReplyNsec    = 13
	fieldReplyPacket  = 14
)

// The wire types of protobuf.
const (
	wireVarint = 0
	wireBytes  = 2
	wire32     = 5
)

// fixedRoom is what a frame takes beside what differs in length: its length, and less
// than six bytes for each of twelve fields, but sixteen for an address.
const fixedRoom = 96

// room is at least what m's frame takes.
func (m *Message) room(head []byte) int {
	return fixedRoom + len(head) + len(m.Packet) + len(m.Extra)
}

// appendFrame appends m as a data frame; head is what comes before it in its payload.
func (m *Message) appendFrame(b, head []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, head...)
	if m.Extra != nil {
		b = appendBytes(b, fieldExtra, m.Extra)
	}
	// The length of the message stands before it, in as many bytes as it takes; so it
	// is written where there is place for it, and moved.
	const place = 1 + binary.MaxVarintLen32
	at := len(b)
	b = append(b, make([]byte, place)...)
	b = m.append(b)
	n := len(b) - at - place
	front := appendKey(b[at:at], fieldMessage, wireBytes)
	front = binary.AppendUvarint(front, uint64(n))
	b = append(b[:at+len(front)], b[at+place:]...)
	b = appendVarint(b, fieldKind, 1)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// append appends the fields of m itself.
func (m *Message) append(b []byte) []byte {
	b = appendVarint(b, fieldType, uint64(m.Type))
	addr := m.Client.Addr().Unmap()
	family := uint64(1)
	if addr.Is6() {
		family = 2
	}
	b = appendVarint(b, fieldFamily, family)
	b = appendVarint(b, fieldProtocol, uint64(m.Protocol))
	if addr.Is4() {
		ip := addr.As4()
		b = appendBytes(b, fieldQueryAddress, ip[:])
	} else {
		ip := addr.As16()
		b = appendBytes(b, fieldQueryAddress, ip[:])
	}
	b = appendVarint(b, fieldQueryPort, uint64(m.Client.Port()))
	b = appendTime(b, fieldQuerySec, m.Query)
	if m.Type == ClientQuery && m.Packet != nil {
		b = appendBytes(b, fieldQueryPacket, m.Packet)
	}
	if !m.Response.IsZero() {
		b = appendTime(b, fieldReplySec, m.Response)
	}
	if m.Type == ClientResponse && m.Packet != nil {
		b = appendBytes(b, fieldReplyPacket, m.Packet)
	}
	return b
}

func appendKey(b []byte, field, wireType uint64) []byte {
	return binary.AppendUvarint(b, field<<3|wireType)
}

func appendVarint(b []byte, field, v uint64) []byte {
	return binary.AppendUvarint(appendKey(b, field, wireVarint), v)
}

func appendBytes(b []byte, field uint64, v []byte) []byte {
	b = binary.AppendUvarint(appendKey(b, field, wireBytes), uint64(len(v)))
	return append(b, v...)
}

// appendTime appends at as seconds in one field and nanoseconds in the next.
func appendTime(b []byte, field uint64, at time.Time) []byte {
	b = appendVarint(b, field, uint64(at.Unix()))
	return binary.LittleEndian.AppendUint32(appendKey(b, field+1, wire32), uint32(at.Nanosecond()))
}
