// Package grpcframe reads and writes the messages of CoreDNS's gRPC service: coredns.dns.DnsService
// has one unary method, Query, whose request and reply are a DnsPacket with one field, the DNS
// message in wire format (`bytes msg = 1`).
//
// A gRPC message in HTTP/2 is a flag for compression, a length of four bytes, and the message in
// protocol buffers' encoding. Here that is a handful of bytes around the DNS message, so the
// package needs neither generated code nor a gRPC library. Messages are never compressed.
package grpcframe

import (
	"encoding/binary"
	"errors"
	"strconv"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// Path is the path of the method Query in HTTP requests.
	Path = "/coredns.dns.DnsService/Query"
	// ContentType is the content type of gRPC. A subtype such as "+proto" may follow it.
	ContentType = "application/grpc"
	// StatusHeader and MessageHeader have the result of a call. They are in the trailer, or in the
	// header of a response without a message.
	StatusHeader  = "Grpc-Status"
	MessageHeader = "Grpc-Message"

	// MaxFrame is the length in bytes of the longest frame that [Parse] accepts: the largest DNS
	// message with its field's header.
	MaxFrame = MaxOverhead + wire.MaxMessage
	// MaxOverhead is how many bytes [Append] adds to a DNS message at most.
	MaxOverhead = prefixLen + fieldHeader

	prefixLen   = 5 // compression flag and length
	fieldHeader = 4 // tag, and the length of at most 65,535 in base 128
	msgTag      = 1<<3 | wireBytes
	lastField   = 1<<29 - 1 // the largest field number
)

// Code is a status code of gRPC.
type Code uint8

// The codes that have a meaning here.
const (
	OK                Code = 0
	InvalidArgument   Code = 3
	NotFound          Code = 5
	ResourceExhausted Code = 8
	Unimplemented     Code = 12
	Internal          Code = 13
	Unavailable       Code = 14
)

// String returns c as the headers have it.
func (c Code) String() string { return strconv.Itoa(int(c)) }

// The errors of [Parse].
var (
	ErrCompressed = errors.New("the gRPC message is compressed")
	ErrTooLarge   = errors.New("the gRPC message is longer than a DNS message")
	ErrMalformed  = errors.New("the gRPC message is malformed")
)

// The wire types of protocol buffers.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// Append appends a frame with the DNS message msg to b. msg has at most [wire.MaxMessage] bytes.
func Append(b, msg []byte) []byte {
	return append(AppendHead(b, len(msg)), msg...)
}

// AppendHead appends what precedes a DNS message of n bytes in its frame.
func AppendHead(b []byte, n int) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, 0)
	if n > 0 { // an empty field is left out
		b = binary.AppendUvarint(append(b, msgTag), uint64(n))
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)-start-prefixLen+n))
	return b
}

// Parse returns the DNS message in b, which holds exactly one frame. The message is part of b, and
// empty if the field is missing.
func Parse(b []byte) ([]byte, error) {
	switch {
	case len(b) > MaxFrame:
		return nil, ErrTooLarge
	case len(b) < prefixLen:
		return nil, ErrMalformed
	case b[0] == 1:
		return nil, ErrCompressed
	case b[0] != 0 || int64(binary.BigEndian.Uint32(b[1:])) != int64(len(b)-prefixLen):
		return nil, ErrMalformed
	}
	return parsePacket(b[prefixLen:])
}

// parsePacket returns the field msg of the DnsPacket b. Of several the last counts, and unknown
// fields are skipped, as protocol buffers require.
func parsePacket(b []byte) (msg []byte, err error) {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 || tag>>3 > lastField {
			return nil, ErrMalformed
		}
		value, rest, ok := cutField(b[n:], tag&7)
		if !ok {
			return nil, ErrMalformed
		}
		if tag == msgTag {
			msg = value
		}
		b = rest
	}
	if len(msg) > wire.MaxMessage {
		return nil, ErrTooLarge
	}
	return msg, nil
}

// cutField cuts a field's value off b; value is nil unless the field's wire type is bytes.
func cutField(b []byte, wireType uint64) (value, rest []byte, ok bool) {
	var size uint64
	switch wireType {
	case wireVarint:
		_, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, nil, false
		}
		return nil, b[n:], true
	case wireFixed64:
		size = 8
	case wireFixed32:
		size = 4
	case wireBytes:
		var n int
		if size, n = binary.Uvarint(b); n <= 0 {
			return nil, nil, false
		}
		b = b[n:]
	default:
		return nil, nil, false
	}
	if size > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:size:size], b[size:], true
}
