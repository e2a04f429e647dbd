package dnstap

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Type is the type of a message.
type Type uint8

// The types in use, with their numbers in dnstap.proto.
const (
	ClientQuery       Type = 5
	ClientResponse    Type = 6
	ForwarderQuery    Type = 7
	ForwarderResponse Type = 8
)

// Protocol is the protocol of a query, with its number in dnstap.proto.
type Protocol uint8

// The protocols in use.
const (
	UDP Protocol = 1
	TCP Protocol = 2
)

// Message is a query or a reply. [Tap.Send] does not keep its slices.
type Message struct {
	Type     Type
	Protocol Protocol
	// Client is who sent the query: the client, or the agent itself for an upstream. Server is the
	// upstream. An invalid address is left out.
	Client, Server netip.AddrPort
	// Query is when the query arrived or was sent, and Response when the reply was ready or arrived;
	// zero if there is no reply.
	Query, Response time.Time
	// Packet is the query or the reply, depending on Type; nil to omit it.
	Packet []byte
	// Extra is text configured by the user; nil for none.
	Extra []byte
}

// Field numbers of dnstap.proto.
const (
	fieldIdentity = 1
	fieldVersion  = 2
	fieldExtra    = 3
	fieldMessage  = 14
	fieldKind     = 15 // of the payload; 1 means Message

	fieldType         = 1
	fieldFamily       = 2
	fieldProtocol     = 3
	fieldQueryAddress = 4
	fieldReplyAddress = 5
	fieldQueryPort    = 6
	fieldReplyPort    = 7
	fieldQuerySec     = 8
	fieldQueryNsec    = 9
	fieldQueryPacket  = 10
	fieldReplySec     = 12
	fieldReplyNsec    = 13
	fieldReplyPacket  = 14
)

// Wire types of protobuf.
const (
	wireVarint = 0
	wireBytes  = 2
	wire32     = 5
)

// fixedLen bounds the fixed-size parts of a frame, in bytes: its length, and less than six
// bytes for each of fourteen fields, with sixteen for each address.
const fixedLen = 128

// maxLen returns an upper bound for the length of m's frame.
func (m *Message) maxLen(head []byte) int {
	return fixedLen + len(head) + len(m.Packet) + len(m.Extra)
}

// appendFrame appends m as a data frame to b; head is the encoding of the fields before
// m's.
func (m *Message) appendFrame(b, head []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, head...)
	if m.Extra != nil {
		b = appendBytes(b, fieldExtra, m.Extra)
	}
	// The length of the message precedes it as a varint. Leave room for the longest one,
	// and move the message back afterwards.
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

// append appends the fields of m.
func (m *Message) append(b []byte) []byte {
	b = appendVarint(b, fieldType, uint64(m.Type))
	addr := m.Client.Addr().Unmap()
	if !addr.IsValid() {
		addr = m.Server.Addr().Unmap()
	}
	family := uint64(1)
	if addr.Is6() {
		family = 2
	}
	b = appendVarint(b, fieldFamily, family)
	b = appendVarint(b, fieldProtocol, uint64(m.Protocol))
	b = appendAddr(b, fieldQueryAddress, m.Client)
	b = appendAddr(b, fieldReplyAddress, m.Server)
	b = appendTime(b, fieldQuerySec, m.Query)
	response := m.Type == ClientResponse || m.Type == ForwarderResponse
	if !response && m.Packet != nil {
		b = appendBytes(b, fieldQueryPacket, m.Packet)
	}
	if !m.Response.IsZero() {
		b = appendTime(b, fieldReplySec, m.Response)
	}
	if response && m.Packet != nil {
		b = appendBytes(b, fieldReplyPacket, m.Packet)
	}
	return b
}

// appendAddr appends the address of addr in field, and its port two fields further; nothing if it is
// invalid.
func appendAddr(b []byte, field uint64, addr netip.AddrPort) []byte {
	if !addr.IsValid() {
		return b
	}
	if ip := addr.Addr().Unmap(); ip.Is4() {
		four := ip.As4()
		b = appendBytes(b, field, four[:])
	} else {
		sixteen := ip.As16()
		b = appendBytes(b, field, sixteen[:])
	}
	return appendVarint(b, field+2, uint64(addr.Port()))
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

// appendTime appends at as seconds in field and nanoseconds in the next field.
func appendTime(b []byte, field uint64, at time.Time) []byte {
	b = appendVarint(b, field, uint64(at.Unix()))
	return binary.LittleEndian.AppendUint32(appendKey(b, field+1, wire32), uint32(at.Nanosecond()))
}
